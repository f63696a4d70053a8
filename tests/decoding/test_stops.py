"""Stop strings against the definition: the text before the first place where one stands."""

import itertools

import pytest

from transformer.decoding.stops import cut, ends, until_stop


def texts(rng, letters, n):
    return "".join(rng.choice(list(letters), n))


def first_place(text, strings):
    """Every place in turn."""
    for place in range(len(text)):
        if any(text[place : place + len(string)] == string for string in strings):
            return place
    return len(text)


def random_stops(rng):
    return [texts(rng, "ab", rng.integers(1, 5)) for _ in range(rng.integers(0, 4))]


def test_a_text_ends_before_the_first_of_them(rng):
    for _ in range(300):
        text, strings = texts(rng, "abc", rng.integers(0, 12)), random_stops(rng)
        assert cut(text, strings) == text[: first_place(text, strings)]


def test_pieces_are_the_whole_wherever_they_are_cut_and_no_more_is_asked_for(rng):
    """Also where a longer stop started earlier than one that is complete: aab and a in "aab"."""
    for _ in range(500):
        text, strings = texts(rng, "abc", rng.integers(0, 14)), random_stops(rng)
        edges = [0, *sorted(rng.integers(0, len(text) + 1, 4).tolist()), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
        taken = []
        shown = list(until_stop((taken.append(piece) or piece for piece in pieces), strings))
        assert "".join(shown) == cut(text, strings)
        assert "" not in shown
        read = "".join(taken[:-1])
        assert not ends(read, strings)


def test_an_end_is_certain_when_nothing_that_follows_changes_it(rng):
    letters = "ab"
    for _ in range(300):
        text, strings = texts(rng, letters, rng.integers(0, 7)), random_stops(rng)
        longest = max(map(len, strings), default=1)
        more = ["".join(tail) for n in range(longest) for tail in itertools.product(letters + "c", repeat=n)]
        cuts = {cut(text + tail, strings) for tail in more}
        found = cut(text, strings) != text
        assert ends(text, strings) == (found and len(cuts) == 1)


@pytest.mark.parametrize("strings", [[], ["x"], ["xyz", "é\n"]])
def test_without_any_of_them_all_is_shown_at_once_but_what_might_begin_one(strings):
    shown = until_stop(["ab", "c\n", "é", "\n!", "d"], strings)
    assert next(shown) == "ab" and next(shown) == "c\n"
    rest = "".join(shown)
    assert rest == ("" if "é\n" in strings else "é\n!d")
