"""Texts of any length in rows, by `data.too_long`."""

import dataclasses
from collections import defaultdict

import numpy as np
import pytest

from tests.data.encoders.test_labelled_text import data
from transformer.data.encoders.labelled_text import LabelledDataConfig
from transformer.data.text.long_texts import excerpt, fit
from transformer.errors import UserError

SIZES = (1, 2, 3, 7, 29, 30, 31, 32, 59, 60, 61, 89, 90, 91, 300, 5000)
"""Around the 30 tokens for which a row of 32 has room, and their multiples."""


def write(path, rng, pairs=False):
    """Texts of all sizes, and an empty one; no two have a common part of ten letters."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))

    def text(size):
        return "".join(rng.choice(letters, size))

    sizes = [(size,) for size in rng.permutation([0, *SIZES])]
    if pairs:
        sizes = [tuple(rng.choice(SIZES[:-1], 2)) for _ in range(60)] + [
            (0, 5),
            (40, 0),
            (5000, 2),
            (2, 5000),
        ]
    texts = [tuple(text(size) for size in each) for each in sizes]
    labels = [("bad", "good")[number % 2] for number in range(len(texts))]
    header = ("text", "second", "label") if pairs else ("text", "label")
    rows = [header, *((*each, label) for each, label in zip(texts, labels, strict=True))]
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return texts, labels


def head_tail(text, size):
    head = int(np.ceil(size / 4))
    return text if size >= len(text) else text[:head] + text[len(text) - (size - head) :]


def read_back(made, rows):
    """For each text of a row: its parts, the name of its label, its weight and the number of its text."""
    found = []
    for row in range(len(rows)):
        batch = {name: values[0] for name, values in rows.batch(np.array([row])).items()}
        count = batch["segments"].max()
        assert not (batch["weights"][count:].any() or batch["labels"][count:].any())
        for k in range(count):
            here = batch["segments"] == k + 1
            tokens, types = batch["tokens"][here], batch["types"][here]
            assert tokens[0] == made.special_tokens.cls and tokens[-1] == made.special_tokens.sep
            parts = [bytes(tokens[types == i].tolist()[i == 0 : -1]).decode() for i in range(types.max() + 1)]
            label, text = made.labels[batch["labels"][k]], int(batch.get("texts", batch["labels"])[k])
            found.append((tuple(parts), label, float(batch["weights"][k]), text))
    return found


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("too_long", ["cut", "head_tail"])
def test_a_long_text_gives_its_beginning_or_both_its_ends(tmp_path, rng, pairs, too_long):
    texts, labels = write(tmp_path / "a.tsv", rng, pairs)
    made = data(tmp_path / "a.tsv", second_field="second" if pairs else "", too_long=too_long)
    rows = made.rows("train")
    expected = []
    for each, label in zip(texts, labels, strict=True):
        if all(each):
            sizes = fit([*map(len, each)], 32 - 1 - len(each))
            part = head_tail if too_long == "head_tail" else lambda text, size: text[:size]
            expected.append((tuple(map(part, each, sizes)), label, 1.0))
    assert sorted(row[:3] for row in read_back(made, rows)) == sorted(expected)
    long = sum(sum(map(len, each)) > 31 - len(each) for each in texts if all(each))
    empty = sum(not all(each) for each in texts)
    assert rows.tally == {"packed": len(texts) - empty, "empty": empty, "truncated": long}


def test_of_510_tokens_the_first_128_and_the_last_382_are_kept():
    """The numbers of Sun et al. 2019."""
    (read,) = excerpt([np.arange(3000)], 510, "head_tail")
    np.testing.assert_array_equal(read, [*range(128), *range(3000 - 382, 3000)])


def test_of_a_pair_the_longer_text_is_truncated_first(rng):
    for _ in range(100):
        sizes, room = rng.integers(0, 40, 2).tolist(), int(rng.integers(1, 50))
        expected = list(sizes)
        while sum(expected) > room:
            expected[0 if expected[0] > expected[1] else 1] -= 1
        assert fit(sizes, room) == expected


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("stride", [0, 1, 7, 29, 30])
def test_windows_hold_every_token_and_weigh_as_much_as_their_text(tmp_path, rng, stride):
    texts, labels = write(tmp_path / "a.tsv", rng)
    made = data(tmp_path / "a.tsv", too_long="windows", stride=stride)
    rows = made.rows("train")
    windows = defaultdict(list)
    for (part,), label, weight, number in read_back(made, rows):
        assert label == labels[number]
        windows[number].append((part, weight))
    assert sorted(windows) == rows.numbers.tolist() == [i for i, (text,) in enumerate(texts) if text]
    for number, found in windows.items():
        (text,) = texts[number]
        count = 1 + int(np.ceil(max(len(text) - 30, 0) / (stride or 30)))
        assert len(found) == rows.windows_n[number] == count
        assert [weight for _, weight in found] == [np.float32(1 / count)] * count
        starts = [0]  # parts of up to a few letters may be in a text more than once: the first fits
        assert all(len(part) == min(30, len(text)) for part, _ in found)
        if len(text) > 30:
            starts = sorted(text.index(part) for part, _ in found)
        assert starts[0] == 0 and starts[-1] + 30 >= len(text)
        steps = np.diff(starts)
        assert (steps <= (stride or 30)).all() and (not len(steps) or steps.max() - steps.min() <= 1)
        # What is predicted is read as what is evaluated, in the order of the text.
        inputs = made.encoder_inputs(text)
        assert [bytes(tokens[1:-1].tolist()).decode() for tokens, _ in inputs] == [
            text[start : start + 30] for start in starts
        ]
    assert rows.batch(np.array([-1]))["weights"].sum() == 0


def test_windows_of_a_pair_hold_every_two_tokens_of_both_texts(tmp_path, rng):
    texts, labels = write(tmp_path / "a.tsv", rng, pairs=True)
    made = data(tmp_path / "a.tsv", second_field="second", too_long="windows")
    rows = made.rows("train")
    windows = defaultdict(list)
    for parts, label, weight, number in read_back(made, rows):
        assert label == labels[number]
        windows[number].append((parts, weight))
    assert sorted(windows) == [i for i, each in enumerate(texts) if all(each)]
    for number, found in windows.items():
        sizes = fit([*map(len, texts[number])], 29)
        counts = [-(-len(text) // size) for text, size in zip(texts[number], sizes, strict=True)]
        assert len(found) == len({parts for parts, _ in found}) == rows.windows_n[number] == np.prod(counts)
        assert sum(weight for _, weight in found) == pytest.approx(1, abs=1e-5)
        for side, (text, size) in enumerate(zip(texts[number], sizes, strict=True)):
            parts = {parts[side] for parts, _ in found}
            assert len(parts) == counts[side] and {*map(len, parts)} == {size}
            covered = {i for part in parts for i in range(text.index(part), text.index(part) + size)}
            assert size < 10 or len(covered) == len(text)


@pytest.mark.parametrize("too_long", ["cut", "head_tail", "windows", "skip"])
def test_an_empty_text_has_no_tokens_and_is_still_answered(tmp_path, rng, too_long):
    write(tmp_path / "a.tsv", rng)
    made = data(tmp_path / "a.tsv", too_long=too_long)
    ((tokens, types),) = made.encoder_inputs("")
    assert tokens.tolist() == [made.special_tokens.cls, made.special_tokens.sep] and not types.any()


def test_windows_that_leave_something_out_are_refused():
    config = LabelledDataConfig(tokenizer="bytes", sequence_length=32, too_long="windows", stride=30)
    for changes, message in (
        ({"stride": 31}, "^stride: 31; expected 0 to 30"),
        ({"stride": 30, "second_field": "second"}, "^stride: 30; expected 0 to 29"),
        (
            {"sequence_length": 4, "second_field": "second", "stride": 0},
            "^sequence_length: 4; windows of pairs",
        ),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(config, **changes)
    assert "stride" in dataclasses.replace(config, too_long="cut").idle()
