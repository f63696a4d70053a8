import json
from collections import Counter

import numpy as np
import pytest

from transformer.data.encoders.masked_text import MaskedData, MaskedDataConfig
from transformer.errors import UserError


def data(folder, documents, **changes):
    (folder / "a.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    keys = {"source": f"text:{folder}/a.txt", "document": "paragraph", "tokenizer": "bytes"}
    return MaskedData(MaskedDataConfig(**keys | {"sequence_length": 64, "cache_dir": str(folder)} | changes))


@pytest.fixture
def small(tmp_path):
    return data(tmp_path, [" ".join(f"w{d}x{i}" for i in range(20 + d % 9)) for d in range(120)])


def spans_of(rows, epoch):
    """First and second texts (n, 2) of an epoch, and the labels."""
    giver_n, follows_n = rows.pairs(epoch)
    return rows.firsts_n2, rows.seconds_n2[giver_n], follows_n


def test_half_of_the_second_texts_follow_and_the_others_are_of_another_document(small):
    rows = small.rows("train")
    held_out = "".join(small.text("validation"))
    everything = small.tokenizer.decode(rows.cache.tokens)
    assert everything in "".join(small.text("train")) and held_out not in everything
    shares = []
    for epoch in range(5):
        firsts_n2, seconds_n2, follows_n = spans_of(rows, epoch)
        ends_n = np.column_stack([firsts_n2, seconds_n2])
        assert (firsts_n2[:, 0] < firsts_n2[:, 1]).all() and (seconds_n2[:, 0] < seconds_n2[:, 1]).all()
        documents_n4 = np.searchsorted(rows.cache.offsets, ends_n - [0, 1, 0, 1], side="right") - 1
        assert (documents_n4[:, 0] == documents_n4[:, 1]).all()
        assert (documents_n4[:, 2] == documents_n4[:, 3]).all()
        assert ((firsts_n2[:, 1] == seconds_n2[:, 0]) == follows_n).all()
        assert ((documents_n4[:, 1] == documents_n4[:, 2]) == follows_n).all()
        shares.append(follows_n.mean())
        for index in range(len(rows.packed)):
            (first, second), label = rows.read(index, epoch)
            assert label == follows_n[index] and len(first) + len(second) + 3 <= 64
            first, second = small.tokenizer.decode(first), small.tokenizer.decode(second)
            assert not label or not (first[-1].isalnum() and second[0].isalnum())
    assert np.mean(shares) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(5 * len(rows.packed)))


@pytest.mark.thorough
def test_each_epoch_has_other_pairs_and_any_host_and_any_start_the_same_ones(small):
    def loader(**options):
        return small.loader("train", 8, seed=3, shuffle=True, repeat=True, **options)

    steps = len(loader())
    first, second = ([loader().batch_at(start + i) for i in range(steps)] for start in (0, steps))
    keys = [
        Counter(
            (bytes(row), int(label))
            for batch in epoch
            for row, labels, weights in zip(batch["targets"], batch["labels"], batch["weights"], strict=True)
            for label in labels[weights > 0]
        )
        for epoch in (first, second)
    ]
    assert keys[0] != keys[1]
    labels = [spans_of(small.rows("train", seed), epoch)[2] for seed, epoch in ((3, 0), (3, 1), (4, 0))]
    assert (labels[0] != labels[1]).any() and (labels[0] != labels[2]).any()
    for step in (0, steps + 1):
        whole = loader().batch_at(step)
        size = len(whole["tokens"])
        parts = [loader(needed=rows).batch_at(step) for rows in np.split(np.arange(size), 4)]
        for name, values in whole.items():
            np.testing.assert_array_equal(values, np.concatenate([part[name] for part in parts]))
    from_there = next(iter(loader().iterate(steps + 1)))
    for name, values in loader().batch_at(steps + 1).items():
        np.testing.assert_array_equal(values, from_there[name])


def test_what_is_measured_is_the_same_each_time(small):
    once, again = (list(small.loader("validation", 4, seed=1).iterate()) for _ in range(2))
    for a, b in zip(once, again, strict=True):
        for name, values in a.items():
            np.testing.assert_array_equal(values, b[name])


# What gives second texts away if the two kinds are drawn otherwise: documents start and end with characters
# of their own, are of any length, and are each of some words that they repeat.
FIRST, LAST, LETTERS = "#@&", ".!?", "abcdefghijklmnop"


def structured(rng, count):
    for _ in range(count):
        words = ["".join(rng.choice([*LETTERS], 2)) for _ in range(4)]
        body = " ".join(rng.choice(words, int(rng.integers(3, 60))))
        yield f"{rng.choice([*FIRST])} {body} {rng.choice([*LAST])}"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of the training and of the validation split as token ids, each with its label."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("pairs")
    # As many to validate: of a few hundred documents, some edges go together by chance.
    (folder / "b.txt").write_text("\n\n".join(structured(rng, 4000)), encoding="utf-8")
    made = data(folder, list(structured(rng, 4000)), validation_source=f"text:{folder}/b.txt")
    found = {}
    for split in ("train", "validation"):
        rows = made.rows(split)
        found[split] = [rows.read(i, epoch) for epoch in range(2) for i in range(len(rows.packed))]
    assert len(found["validation"]) > 10_000
    return found


def length_of(text):
    return len(text) // 4


def total(first, second):
    return len(first) + len(second)


def counts_of(text):
    return list(zip(*np.unique(text, return_counts=True), strict=True))


SEEN = {
    "edges of the second": lambda first, second: [(0, second[0]), (1, second[-1])],
    "edges of both": lambda first, second: [*enumerate((first[0], first[-1], second[0], second[-1]))],
    "outer edges together": lambda first, second: [(first[0], second[-1])],
    "lengths": lambda first, second: [
        *enumerate((length_of(first), length_of(second), total(first, second)))
    ],
    "lengths together": lambda first, second: [
        (length_of(first), length_of(second), total(first, second) == 61)
    ],
    "length and outer edges": lambda first, second: [(total(first, second) == 61, first[0], second[-1])],
    "the second text": lambda first, second: counts_of(second),
    "the first text": lambda first, second: counts_of(first),
}
"""What a classifier sees of a pair."""


def bayes(seen, train, held_out):
    """The accuracy on held-out pairs of naive Bayes on what `seen` says, counted on training pairs."""
    counts = [Counter(), Counter()]
    for (first, second), label in train:
        counts[label].update(seen(first, second))
    total = [sum(each.values()) for each in counts]

    def score(feature):
        return np.log(((counts[1][feature] + 1) * total[0]) / ((counts[0][feature] + 1) * total[1]))

    right = [(sum(map(score, seen(*texts))) > 0) == label for texts, label in held_out]
    return np.mean(right)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("what", SEEN)
def test_the_label_cannot_be_told_without_comparing_the_texts(pairs, what):
    assert bayes(SEEN[what], pairs["train"], pairs["validation"]) == pytest.approx(0.5, abs=0.02)


def test_it_can_be_told_from_what_both_are_about(pairs):
    """Words that the two texts share are what the label is to be told from."""

    def shared(first, second):
        return [round(4 * len(np.intersect1d(first, second)) / len(np.unique(second)))]

    assert bayes(shared, pairs["train"], pairs["validation"]) > 0.7


def test_one_document_has_no_other(tmp_path):
    (tmp_path / "one.txt").write_text("just this " * 100)
    source = f"text:{tmp_path}/one.txt"
    made = data(tmp_path, ["a b"], source=source, validation_source=source, document="file")
    with pytest.raises(UserError, match=r"^data.next_sentence: the text is one document; data.document="):
        made.rows("train")


@pytest.mark.parametrize("sizes", [[40, 40], [400, 3], [3, 3], [2000, 2000, 5]])
def test_few_documents_give_pairs_too(tmp_path, rng, sizes):
    documents = [" ".join(f"w{rng.integers(100)}" for _ in range(size)) for size in sizes]
    source = f"text:{tmp_path}/a.txt"
    made = data(tmp_path, documents, validation_source=source)
    rows = made.rows("train")
    for epoch in range(3):
        giver_n, follows_n = rows.pairs(epoch)
        assert ((giver_n == np.arange(len(giver_n))) == follows_n).all()
        assert (np.diff(rows.seconds_n2) > 0).all()
    assert rows.batch(np.arange(len(rows)))["weights"].sum() == len(rows.packed)


def test_texts_of_a_single_word_are_left_out_and_counted(tmp_path):
    texts = ["single", "x" * 200, "one two", "three four", "y"] * 9
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    source = f"jsonl:{tmp_path}/a.jsonl"
    made = data(tmp_path, [], source=source, validation_source=source)
    rows = made.rows("train")
    no_second_word = 9 * (2 + -(-200 // 61))
    assert len(rows.packed) == 18 and rows.tally["no second word"] == no_second_word == 54
