import numpy as np
import pytest

from tests.data.documents import tokenizer
from transformer.data.encoders.masked_text import MaskedData, MaskedDataConfig
from transformer.data.encoders.masking import Masking, WordBoundaries
from transformer.data.loader import DataLoader, Rows
from transformer.data.tokenization.special_tokens import SpecialTokens

TEXT = "alpha beta gammadelta! (epsilon zeta) ünï_code 42\n"


def masking(kind="token", share=0.15, seed=0, made=None):
    made = made or tokenizer("bpe", [TEXT * 3])
    special_tokens = SpecialTokens.of(made)
    return Masking(WordBoundaries(made, special_tokens), special_tokens, kind, share, seed)


def rows(mask, b, t, rng):
    """Rows that are `[CLS] tokens [SEP]` and padding, of tokens drawn alike from the vocabulary."""
    tokens, segments = np.zeros((b, t), np.int32), np.zeros((b, t), np.int32)
    for i, n in enumerate(rng.integers(t // 2, t + 1, b)):
        tokens[i, :n], segments[i, :n] = rng.choice(mask.words.ordinary, n), 1
        tokens[i, 0], tokens[i, n - 1] = mask.special_tokens.cls, mask.special_tokens.sep
    return {"tokens": tokens, "segments": segments}


@pytest.mark.parametrize("kind", ["token", "word", "span"])
def test_what_is_masked_is_the_target_and_the_rest_is_as_it_was(rng, kind):
    mask = masking(kind)
    batch = rows(mask, 40, 64, rng)
    found = mask(batch, np.arange(40))
    for i in range(40):
        count = int(found["guessed"][i].sum())
        np.testing.assert_array_equal(found["guessed"][i], np.arange(len(found["guessed"][i])) < count)
        assert (np.diff(found["places"][i, :count]) > 0).all() and not found["places"][i, count:].any()
        places = found["places"][i, :count]
        assert len(set(places)) == count >= 1
        np.testing.assert_array_equal(found["targets"][i, :count], batch["tokens"][i, places])
        others = np.setdiff1d(np.arange(64), places)
        np.testing.assert_array_equal(found["tokens"][i, others], batch["tokens"][i, others])
        special = (mask.special_tokens.cls, mask.special_tokens.sep)
        assert (batch["segments"][i, places] == 1).all() and not np.isin(
            found["targets"][i, :count], special
        ).any()
        assert np.isin(found["tokens"][i, places], [*mask.words.ordinary, mask.special_tokens.mask]).all()


def test_over_a_million_tokens_the_shares_are_those_of_the_paper(rng):
    mask = masking()
    b, t = 2000, 512
    batch = rows(mask, b, t, rng)
    found = mask(batch, np.arange(b))
    guessed = found["guessed"] > 0
    free = (batch["segments"] > 0).sum() - 2 * b
    count = guessed.sum()
    assert count / free == pytest.approx(0.15, abs=1e-3)  # rounded in every row, not drawn
    shown = np.take_along_axis(found["tokens"], found["places"], axis=1)[guessed]
    targets, v = found["targets"][guessed], len(mask.words.ordinary)
    masked, same = shown == mask.special_tokens.mask, shown == targets
    for share, expected in ((masked.mean(), 0.8), (same.mean(), 0.1 + 0.1 / v)):
        assert share == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / count))
    other = shown[~masked & ~same]
    # What is put in is any token, each as often as the others.
    counts = np.array([(other == token).sum() for token in mask.words.ordinary])
    assert counts.std() / counts.mean() == pytest.approx(np.sqrt(v / len(other)), rel=0.3)
    places = np.bincount(found["places"][guessed], minlength=t)[1 : t // 2 - 1]
    assert places.std() < 1.5 * np.sqrt(places.mean())


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["token", "word", "span"])
def test_the_same_for_any_number_of_hosts_and_other_ones_each_time(rng, kind):
    mask = masking(kind, seed=3)
    batch = rows(mask, 8, 32, rng)

    class Same(Rows):
        def __len__(self):
            return 8

        def batch(self, numbers):
            return {name: values[numbers] for name, values in batch.items()}

    def loader(**options):
        return DataLoader(Same(), 8, seed=1, shuffle=True, repeat=True, transform=mask, **options)

    for step in (0, 1, 5):
        whole = loader().batch_at(step)
        for hosts in (2, 4):
            parts = [loader(needed=rows).batch_at(step) for rows in np.split(np.arange(8), hosts)]
            for name, values in whole.items():
                np.testing.assert_array_equal(values, np.concatenate([part[name] for part in parts]))
    assert (loader().batch_at(0)["places"] != loader().batch_at(1)["places"]).any()
    assert (masking(kind, seed=4)(batch, np.arange(8))["tokens"] != mask(batch, np.arange(8))["tokens"]).any()


@pytest.mark.parametrize("kind", ["bpe", "bytes", "characters", "wordpiece", "metaspace"])
def test_words_begin_where_a_reader_sees_them_begin(kind):
    made = tokenizer(kind, [TEXT * 3])
    words = WordBoundaries(made, SpecialTokens.of(made))
    text = "alpha beta (zeta)! gammadelta"
    ids = np.array(made.encode(text))
    starts = np.flatnonzero(words.begins(ids))
    pieces = [made.decode(part).strip() for part in np.split(ids, starts)[1:]]
    assert [piece.removeprefix("##") for piece in pieces if piece] == [
        "alpha",
        "beta",
        "(",
        "zeta",
        ")",
        "!",
        "gammadelta",
    ]


def test_whole_words_are_masked_whole_and_spans_are_neighbours():
    made = tokenizer("bytes")
    text = "some words of many letters " * 8
    tokens = np.array([made.encode(text)])
    batch = {"tokens": tokens, "segments": np.ones_like(tokens)}
    word, span = (masking(kind, made=made) for kind in ("word", "span"))

    def chosen(mask, place):
        found = mask(batch, np.array([place]))
        where = np.zeros(tokens.shape[1], bool)
        where[found["places"][0][found["guessed"][0] > 0]] = True
        return where

    runs = []
    for place in range(200):
        where = chosen(word, place)
        start = 0
        for each in text.split(" "):
            inside = where[start : start + len(each)]
            assert inside.all() or not inside.any()
            start += len(each) + 1
        shown = "".join("x" if each else " " for each in chosen(span, place))
        runs.append(len(shown.split()))
    # A budget of 32 letters is some four words and their spaces; as spans they stand together.
    assert np.mean(runs) < 4.5


def test_a_span_is_masked_or_replaced_or_left_as_one():
    made = tokenizer("bytes")
    # Of ten words of ten letters one fits into the budget, and no second one: what is chosen is one span.
    word = [*made.encode("abcdefghij"), SpecialTokens.of(made).sep]
    tokens = np.array([word * 10])
    batch = {"tokens": tokens, "segments": np.ones_like(tokens)}
    fates = {kind: [] for kind in ("word", "span")}
    for kind in fates:
        mask = masking(kind, made=made)
        for place in range(800):
            found = mask(batch, np.array([place]))
            where = found["places"][0][found["guessed"][0] > 0]
            assert len(where) == 10
            shown, was = found["tokens"][0, where], tokens[0, where]
            # A letter drawn at random is some other one, but for one of 256.
            fates[kind].append([np.mean(shown == mask.special_tokens.mask), np.mean(shown == was)])
    masked_n, kept_n = np.array(fates["span"]).T
    assert np.isin(masked_n, [0, 1]).all()
    other_n = (masked_n == 0) & (kept_n < 0.5)
    for found, share in ((masked_n, 0.8), (kept_n > 0.9, 0.1), (other_n, 0.1)):
        assert found.mean() == pytest.approx(share, abs=4.5 * np.sqrt(share * (1 - share) / 800))
    assert np.mean(np.isin(np.array(fates["word"])[:, 0], [0, 1])) < 0.5  # each of its own


def data(tmp_path, **changes):
    documents = [" ".join(f"w{d}x{i}" for i in range(40 + d)) for d in range(40)]
    (tmp_path / "a.txt").write_text("\n\n".join(documents) + "\n")
    keys = {"source": f"text:{tmp_path}/a.txt", "document": "paragraph", "tokenizer": "bytes"}
    return MaskedData(
        MaskedDataConfig(**keys | {"sequence_length": 64, "cache_dir": str(tmp_path)} | changes)
    )


def test_without_next_sentence_every_token_is_in_a_row_once(tmp_path):
    made = data(tmp_path, next_sentence=False)
    rows = made.rows("train")
    found = sorted(made.tokenizer.decode(rows.texts(index)[0]) for index in rows.packed)
    assert sum(map(len, found)) == len("".join(made.text("train")))
    assert max(map(len, found)) <= 62
    batch = rows.batch(np.arange(len(rows)))
    assert (batch["segments"] > 0).mean() == pytest.approx(1 - rows.padding)
