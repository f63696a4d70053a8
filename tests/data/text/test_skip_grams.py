import collections
import itertools
import re

import numpy as np
import pytest

from transformer.data.loader import DataLoader
from transformer.data.text.skip_grams import SkipGramData, SkipGramDataConfig, SkipGrams
from transformer.errors import UserError

WORDS = ["the", "cat", "sat", "on", "a", "mat", ",", "rarely"]
SHARES = [0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.04, 0.01]


def data_of(tmp_path, rng, **keys) -> SkipGramData:
    """A corpus of 40 documents of random words, some of them unknown."""
    lines = [" ".join(rng.choice(WORDS, rng.integers(0, 60), p=SHARES)) for _ in range(40)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    source = f"text:{tmp_path}/text.txt"
    shape = {
        "document": "line",
        "vocab_size": 2 + len(WORDS) - 1,
        "sequence_length": 16,
        "window": 3,
        "noise": 5,
    }
    more = {"validation_source": source, "cache_dir": str(tmp_path / "cache")}
    return SkipGramData(SkipGramDataConfig(**({"source": source} | shape | more | keys)))


def test_counts_are_those_of_the_training_text(tmp_path, rng):
    data = data_of(tmp_path, rng)
    counted = collections.Counter((tmp_path / "text.txt").read_text().split())
    (least,) = counted.keys() - data.tokenizer.words().keys()
    del counted[least]  # is not among the seven commonest
    counts = data.counts()
    assert {word: counts[token] for word, token in data.tokenizer.words().items()} == counted
    assert counts.sum() == counted.total()


def test_a_large_text_is_counted_in_parts(tmp_path, rng, monkeypatch):
    data = data_of(tmp_path, rng)
    whole = data.counts()
    monkeypatch.setattr("transformer.data.text.skip_grams.AT_ONCE", 7)
    np.testing.assert_array_equal(data.counts(), whole)


def test_rows_are_their_documents_with_words_left_out(tmp_path, rng):
    """What is left is a subsequence of the row, never with an end or an unknown word, and 0 follows it."""
    data = data_of(tmp_path, rng, subsample=0.05)
    rows = data.rows("train")
    numbers = rng.permutation(len(rows))
    before = rows.batch(numbers)
    after = SkipGrams(data.counts(), data.config, seed=int(rng.integers(2**31)))(before, numbers + 7)
    left_out = 0
    for row in range(len(numbers)):
        old = list(zip(before["tokens"][row], before["segments"][row], strict=True))
        kept = after["segments"][row] > 0
        assert sorted(kept, reverse=True) == list(kept)
        rest = iter(old)
        new = list(zip(after["tokens"][row][kept], after["segments"][row][kept], strict=True))
        assert all(pair in rest for pair in new)  # takes from the iterator up to the pair: keeps the order
        assert not {token for token, _ in new} & {data.tokenizer.eos_id, data.tokenizer.unknown_id}
        left_out += len(old) - len(new)
    assert 0 < left_out < before["tokens"].size
    assert {name: (values.shape, values.dtype) for name, values in after.items()} == {
        "tokens": ((len(rows), 16), np.int32),
        "segments": ((len(rows), 16), np.int32),
        "reach": ((len(rows), 16), np.int32),
        "noise": ((len(rows), 5), np.int32),
    }


def test_without_subsampling_every_known_word_stays(tmp_path, rng):
    data = data_of(tmp_path, rng, subsample=0.0)
    loader = data.loader("train", 4, seed=3)
    batches = [loader.batch_at(step) for step in range(len(loader))]
    assert sum((batch["segments"] > 0).sum() for batch in batches) == data.counts().sum()


def drawn(config: SkipGramDataConfig, counts: np.ndarray, rng, rows: int = 400) -> tuple[np.ndarray, dict]:
    """Rows in which each word is as frequent as the next, and what `SkipGrams` makes of them."""
    tokens = rng.integers(0, len(counts), (rows, 50)).astype(np.int32)
    batch = {"tokens": tokens, "segments": np.ones_like(tokens)}
    places = np.arange(rows) + int(rng.integers(2**31))
    return tokens, SkipGrams(counts, config, seed=int(rng.integers(2**31)))(batch, places)


def near(found: int, trials: int, p: float) -> bool:
    """Whether that many of the trials are within five standard deviations of what is expected."""
    return abs(found - trials * p) <= 5 * np.sqrt(trials * p * (1 - p)) + 1e-9


def test_words_are_left_out_and_noise_is_drawn_as_often_as_the_paper_says(rng):
    counts = np.array([0, 0, 5000, 2000, 1500, 1000, 400, 99, 1])
    config = SkipGramDataConfig(subsample=0.05, window=4, noise=100)
    before, after = drawn(config, counts, rng)
    kept = after["tokens"][after["segments"] > 0]
    noise = counts**0.75 / (counts**0.75).sum()
    for token, count in enumerate(counts):
        keep = min(1.0, np.sqrt(0.05 / (count / counts.sum()))) if count else 0.0
        assert near((kept == token).sum(), (before == token).sum(), keep)
        assert near((after["noise"] == token).sum(), after["noise"].size, noise[token])
    assert near((kept == 2).sum(), (before == 2).sum(), np.sqrt(0.1))  # half of all words


def test_a_window_reaches_each_distance_equally_often(rng):
    _, after = drawn(SkipGramDataConfig(subsample=0.0, window=4), np.ones(9), rng)
    for reach in range(1, 5):
        assert near((after["reach"] == reach).sum(), after["reach"].size, 1 / 4)
    assert set(np.unique(after["reach"])) == {1, 2, 3, 4}


def test_batches_are_the_same_on_any_number_of_processes_and_new_in_each_epoch(tmp_path, rng):
    data = data_of(tmp_path, rng, subsample=0.05)
    seed = int(rng.integers(2**31))
    order = {"seed": seed, "shuffle": True, "repeat": True}
    whole = data.loader("train", 8, **order)
    for count, step in itertools.product((2, 4, 8), (0, 3, 50)):
        parts = [
            data.loader("train", 8, needed=needed, **order).batch_at(step)
            for needed in np.split(np.arange(8), count)
        ]
        for name, values in whole.batch_at(step).items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
    first = SkipGrams(data.counts(), data.config, seed)
    same = {
        name: values[:1].repeat(2, axis=0) for name, values in data.rows("train").batch(np.arange(1)).items()
    }
    again = first(same, np.array([5, 5 + len(data.rows("train"))]))
    assert (again["noise"][0] != again["noise"][1]).any() or (again["reach"][0] != again["reach"][1]).any()
    other = SkipGrams(data.counts(), data.config, seed + 1)(same, np.array([5, 5]))
    assert (other["reach"][0] != again["reach"][0]).any()
    np.testing.assert_array_equal(other["reach"][0], other["reach"][1])


def test_padding_has_no_words(tmp_path, rng):
    data = data_of(tmp_path, rng)
    batch = DataLoader(
        data.rows("validation"), 1 << 10, transform=SkipGrams(data.counts(), data.config, 0)
    ).batch_at(0)
    assert (batch["segments"][len(data.rows("validation")) :] == 0).all()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("window", 0, "window: 0; expected at least 1"),
        ("noise", 0, "noise: 0; expected at least 1"),
        ("subsample", -1.0, "subsample: -1.0; expected 0 or more"),
        ("vocab_size", 2, "vocab_size: 2; words needs at least 3: a word, all others, and the end"),
    ],
)
def test_impossible_keys(key, value, message):
    with pytest.raises(UserError, match=re.escape(message)):
        SkipGramDataConfig(**{key: value})


def test_a_text_of_which_no_word_is_known(tmp_path, rng):
    data = data_of(tmp_path, rng)
    data.tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "other.txt").write_text("日本語\n")
    other = {"source": f"text:{tmp_path}/other.txt", "validation_source": f"text:{tmp_path}/other.txt"}
    foreign = data_of(tmp_path, rng, tokenizer=str(tmp_path / "tokenizer.json"), **other)
    with pytest.raises(UserError, match=r"data.source: .*other.txt.* has no word that data.tokenizer knows"):
        foreign.loader("train", 2)
