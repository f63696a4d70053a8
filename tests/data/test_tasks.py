import itertools

import numpy as np
import pytest

from transformer.data.sources.base import SPLITS
from transformer.data.tasks import (
    TASKS,
    DigitAddition,
    ModularAddition,
    Recall,
    Repeats,
    SelectiveCopying,
    WordProblem,
)
from transformer.data.tasks.base import TaskData, make_task
from transformer.errors import UserError


@pytest.mark.parametrize("modulus", [2, 7, 12])
def test_modular_addition_is_the_whole_table_in_two_parts(rng, modulus):
    task = ModularAddition(modulus, train_fraction=0.4, split_seed=int(rng.integers(1000)))
    pairs = {}
    for split in SPLITS:
        batch = task.batch(split, np.arange(task.size(split)))
        a, b, sign = batch["tokens"].T
        np.testing.assert_array_equal(batch["targets"], np.stack([b, sign, (a + b) % modulus], axis=1))
        np.testing.assert_array_equal(sign, modulus)
        np.testing.assert_array_equal(batch["weights"], [[0, 0, 1]] * len(a))
        np.testing.assert_array_equal(batch["answers"], batch["weights"])
        pairs[split] = set(zip(a.tolist(), b.tolist(), strict=True))
        assert len(pairs[split]) == len(a)
    assert pairs["validation"] == pairs["test"] and not pairs["train"] & pairs["test"]
    assert len(pairs["train"] | pairs["test"]) == modulus**2
    assert len(pairs["train"]) == int(0.4 * modulus**2)


def test_repeats_are_known_from_the_token_before_them(rng):
    task = Repeats(vocab_size=9, length=20, shortest=2, longest=7)
    batch = task.batch("train", rng.integers(2**31, size=50))
    periods = set()
    for tokens, targets, known in zip(batch["tokens"], batch["targets"], batch["answers"], strict=True):
        row = [*tokens, targets[-1]]
        np.testing.assert_array_equal(tokens[1:], targets[:-1])
        for i, token in enumerate(tokens):
            after = {row[j + 1] for j in range(i) if row[j] == token}
            assert after == ({targets[i]} if known[i] else set())
        periods.add(len(set(row)))
    np.testing.assert_array_equal(batch["weights"], 1)
    assert periods == {2, 3, 4, 5, 6, 7} and batch["tokens"].max() == 8


def test_a_query_asks_for_the_value_behind_the_only_earlier_key(rng):
    task = Recall(vocab_size=20, length=26, pairs=5)
    batch = task.batch("train", rng.integers(2**31, size=200))
    distances, values = [], set()
    for tokens, targets, queried in zip(batch["tokens"], batch["targets"], batch["answers"], strict=True):
        for i, token in enumerate(tokens):
            before = [j for j in range(i) if tokens[j] == token]
            is_query = token < 10 and i >= 10
            assert queried[i] == is_query
            if is_query:
                assert len(before) == 1 and before[0] < 10 and i % 2 == 0
                assert targets[i] == tokens[before[0] + 1] >= 10
                distances.append(i)
                values.add(int(targets[i]))
        assert queried.sum() == 5 and len(set(tokens[:10])) == 10
    np.testing.assert_array_equal(batch["weights"], batch["answers"])
    assert values == {*range(10, 20)} and {*distances} == {*range(10, 26, 2)}
    counts = np.bincount(distances)[10::2]
    assert counts[0] > 1.5 * counts[-1]  # near ones are more frequent


def test_marks_ask_for_the_symbols_in_their_order(rng):
    task = SelectiveCopying(vocab_size=6, length=20, symbols=5)
    batch = task.batch("train", np.append(rng.integers(2**31, size=50), -1))
    places = set()
    for tokens, targets, asked in zip(batch["tokens"], batch["targets"], batch["weights"], strict=True):
        symbols = [int(token) for token in tokens[:20] if token]
        assert len(symbols) == 5 and min(symbols) >= 2 and max(symbols) <= 5
        assert tokens[20:].tolist() == [1] * 5 and targets[20:].tolist() == symbols
        assert asked[:20].sum() == 0
        places |= {i for i, token in enumerate(tokens[:20]) if token}
    assert batch["weights"][:, 20:].sum(axis=1).tolist() == [5] * 50 + [0]
    np.testing.assert_array_equal(batch["weights"], batch["answers"])
    assert places == {*range(20)} and task.length == 25


@pytest.mark.parametrize("split", SPLITS)
def test_sums_are_those_of_integers(rng, split):
    task, lengths = DigitAddition(digits=3, factor=3), set()
    batch = task.batch(split, np.append(rng.integers(2**31, size=100), -1))
    assert batch["tokens"].shape[1] == (task.length if split == "train" else task.longest)
    for tokens, targets, asked in zip(batch["tokens"], batch["targets"], batch["weights"], strict=True):
        row = [*tokens.tolist(), int(targets[-1])]
        np.testing.assert_array_equal(tokens[1:], targets[:-1])
        plus, equals, end = row.index(10), row.index(11), row.index(12)
        parts = row[:plus], row[plus + 1 : equals], row[equals + 1 : end]
        a, b, c = (int("".join(map(str, digits[::-1]))) for digits in parts)
        assert a + b == c and plus == equals - plus - 1 == end - equals - 2
        assert {*row[end:]} == {12}
        if asked.any():
            assert np.flatnonzero(asked).tolist() == [*range(equals, end)]
            lengths.add(plus)
    assert not batch["weights"][-1].any()
    assert lengths == ({1, 2, 3} if split == "train" else {4, 5, 6, 7, 8, 9})
    np.testing.assert_array_equal(batch["weights"], batch["answers"])


@pytest.mark.parametrize("degree", [2, 3, 5])
def test_answers_of_word_problems_are_products_of_permutations(rng, degree):
    task, elements = WordProblem(degree, length=4, factor=3), [*itertools.permutations(range(degree))]
    assert task.longest == 12 and task.vocab_size == len(elements)
    for split, length, first in (("train", 4, 0), ("validation", 12, 4)):
        batch = task.batch(split, rng.integers(2**31, size=30))
        assert batch["tokens"].shape == (30, length)
        for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
            for i in range(length):
                points = []
                for point in range(degree):
                    for element in reversed(tokens[: i + 1]):
                        point = elements[element][point]
                    points.append(point)
                assert elements[targets[i]] == tuple(points)
        np.testing.assert_array_equal(batch["answers"], batch["weights"] * (np.arange(length) >= first))


def test_parity_counts_the_ones(rng):
    batch = WordProblem(degree=2).batch("test", rng.integers(2**31, size=8))
    np.testing.assert_array_equal(batch["targets"], np.cumsum(batch["tokens"], axis=1) % 2)


@pytest.mark.parametrize("kind", TASKS)
def test_a_row_is_a_function_of_its_split_and_index(rng, kind):
    task = TASKS[kind]()
    rows = rng.integers(0, 3000, size=6)
    together = task.batch("train", rows)
    for i, row in enumerate(rows):
        alone = task.batch("train", np.array([-1, row]))
        for name, values in alone.items():
            np.testing.assert_array_equal(values[1], together[name][i])
            if name in ("weights", "answers"):
                np.testing.assert_array_equal(values[0], 0)
    validation = task.batch("validation", rows)["tokens"][:, : together["tokens"].shape[1]]
    assert (validation != together["tokens"]).any()


class Config:
    evaluated_rows, workers = 10, 0


def test_training_does_not_end_and_evaluation_has_its_rows():
    endless = TaskData(Config, Repeats(), "repeats", {})
    assert len(endless.loader("validation", 4)) == len(endless.loader("train", 4)) == 3
    first, second = (
        endless.loader("train", 4, repeat=True, shuffle=True, seed=seed).batch_at(10**6)["tokens"]
        for seed in (0, 1)
    )
    assert (first != second).any()
    table = TaskData(Config, ModularAddition(5), "modular_addition", {})
    assert len(table.loader("validation", 4)) == 5
    assert (
        table.contents()
        != TaskData(Config, ModularAddition(7), "modular_addition", {"modulus": 7}).contents()
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("repeats", {"size": 3}, "arguments.size: repeats takes only vocab_size, length, shortest, longest"),
        ("repeats", {"length": 30.5}, "arguments.length: 30.5; expected int"),
        (
            "repeats",
            {"longest": 65, "length": 99},
            "arguments.longest: 65 with shortest 16; expected shortest",
        ),
        ("repeats", {"shortest": 40}, "arguments.longest: 32 with shortest 40; expected shortest <= longest"),
        (
            "recall",
            {"pairs": 17},
            "arguments.pairs: 17 with length 64 and vocab_size 8192; expected at least",
        ),
        ("recall", {"power": 0}, "arguments.power: 0; expected a number above 0"),
        ("word_problem", {"degree": 6}, "arguments.degree: 6; expected 2 to 5"),
        ("word_problem", {"factor": 1}, "arguments.length: 32 with factor 1; expected at least 1, and at l"),
        ("selective_copying", {"vocab_size": 2}, "arguments.vocab_size: 2; expected at least 3"),
        ("selective_copying", {"length": 9}, "arguments.symbols: 16 with length 9; expected 1 to length"),
        ("digit_addition", {"factor": 1}, "arguments.digits: 8 with factor 1; expected at least 1, and at l"),
        ("modular_addition", {"modulus": 1}, "arguments.modulus: 1; expected at least 2"),
        ("modular_addition", {"train_fraction": 1}, "arguments.train_fraction: 1; expected one that leaves"),
    ],
)
def test_arguments_are_checked(kind, arguments, message):
    with pytest.raises(UserError) as error:
        make_task(TASKS[kind], kind, arguments)
    assert str(error.value).startswith(message)
