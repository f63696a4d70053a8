import numpy as np
import pytest

from transformer.data.sources.base import SPLITS
from transformer.data.tasks import TASKS, ModularAddition, Repeats
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
    assert (task.batch("validation", rows)["tokens"] != together["tokens"]).any()


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
        ("modular_addition", {"modulus": 1}, "arguments.modulus: 1; expected at least 2"),
        ("modular_addition", {"train_fraction": 1}, "arguments.train_fraction: 1; expected one that leaves"),
    ],
)
def test_arguments_are_checked(kind, arguments, message):
    with pytest.raises(UserError) as error:
        make_task(TASKS[kind], kind, arguments)
    assert str(error.value).startswith(message)
