"""The rows of each step of a run in stages against a list made by hand, its steps and its measures."""

import dataclasses
import itertools
import types

import numpy as np
import pytest

from transformer.data.loader import DataLoader, Rows
from transformer.data.text.interleaving import Interleaving
from transformer.data.text.mixture import MixedLoader
from transformer.errors import UserError
from transformer.sums import Sum
from transformer.training import metrics
from transformer.training.extras import stages
from transformer.training.extras.divergence import Watch
from transformer.training.extras.stage_config import rows_before
from transformer.training.extras.stages import FOREVER, Stage, StagedBatches, StagedMeter, Stages
from transformer.training.run_config import TrainConfig

STEPS = 24


class Numbered(Rows):
    """Rows that are their number, from `first` on."""

    def __init__(self, count, first=0):
        self.count, self.first = count, first

    def __len__(self):
        return self.count

    def batch(self, rows):
        return {"x": self.first + np.repeat(rows[:, None], 4, axis=1)}


def loader(count=37, **options):
    return DataLoader(Numbered(count), 6, seed=3, shuffle=True, repeat=True, workers=0, **options)


def mixed():
    parts = {
        name: DataLoader(Numbered(count, first), 6, seed=4, shuffle=True, repeat=True, workers=0)
        for name, count, first in (("a", 19, 0), ("b", 23, 1000))
    }
    return MixedLoader(Numbered(42), 6, parts=parts, weights=[0.7, 0.3], repeat=True, workers=0)


def size_at(step, until, last):
    """Until the first of the ends after a step."""
    return next((rows for end, rows in sorted(until.items()) if step < end), last)


RUN = types.SimpleNamespace(experiment=types.SimpleNamespace(staged=lambda rows: rows))
"""A run whose rows are the same in all stages."""


def made(until, last=6, length=None):
    """The stages of a batch size."""
    firsts = [0, *sorted(until)]
    ends = [*firsts[1:], FOREVER]
    values = {"sequence_length": length} if length else {}
    return [
        Stage(first, end, size_at(first, until, last), RUN, values)
        for first, end in zip(firsts, ends, strict=True)
    ]


def rows_of(batches, start=0, steps=STEPS):
    return [batch["x"][:, 0].tolist() for batch in itertools.islice(batches.iterate(start), steps - start)]


def by_hand(whole, until, last=6, place=0):
    """Every row in the order of the data, dealt out step by step."""
    single = dataclasses.replace(whole, batch_size=1, needed=None)
    found = []
    for step in range(STEPS):
        rows = size_at(step, until, last)
        places = range(max(0, place), max(0, place + rows))
        found.append([int(single.batch_at(each)["x"][0, 0]) for each in places])
        place += rows
    return found


SCHEDULES = [{}, {5: 2}, {3: 2, 11: 4}, {1: 12, 2: 2, 20: 10}, {100: 2}]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("whole", [loader(), mixed()], ids=["one", "mixture"])
@pytest.mark.parametrize("until", SCHEDULES, ids=str)
def test_every_row_is_read_once_in_an_epoch_from_wherever_it_resumes(whole, until):
    batches, expected = StagedBatches(whole, made(until), None), by_hand(whole, until)
    assert rows_of(batches) == expected
    for start in (1, 4, 5, 11, 21):
        assert rows_of(batches, start) == expected[start:]
    if isinstance(whole, MixedLoader):
        places = np.arange(sum(map(len, expected)))
        sources = Interleaving([0.7, 0.3])(places)[0]
        assert ((np.concatenate(expected) >= 1000) == sources).all()
    else:
        assert sorted(np.concatenate(expected)[:37]) == [*range(37)]


@pytest.mark.parametrize("until", SCHEDULES, ids=str)
def test_every_step_is_of_the_stage_whose_batches_it_reads(until):
    found = types.SimpleNamespace(_stages=made(until))
    assert [Stages.at(found, step).rows for step in range(STEPS)] == [
        size_at(step, until, 6) for step in range(STEPS)
    ]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_share_the_rows_of_every_stage(monkeypatch, processes):
    until = {3: 4, 11: 12}
    expected, parts = by_hand(loader(), until, 8), []
    for process in range(processes):
        monkeypatch.setattr(
            stages, "rows_here", lambda rows, p=process: np.arange(rows).reshape(processes, -1)[p]
        )
        parts.append(rows_of(StagedBatches(loader(), made(until, 8), None)))
    assert [[*itertools.chain(*step)] for step in zip(*parts, strict=True)] == expected


def test_batches_may_begin_at_any_row():
    """As those of a fork at a step do, whose run has read that many rows."""
    until = {3: 2, 11: 4}
    batches = StagedBatches(loader(), made(until), None)
    for step, row in ((7, 100), (0, 5), (15, 3)):
        before = sum(size_at(s, until, 6) for s in range(step))
        found = rows_of(batches.beginning(step, row), step)
        assert found == by_hand(loader(), until, place=row - before)[step:]


def test_a_stage_that_devices_do_not_divide_can_be_past_and_not_read(monkeypatch):
    def by_four(rows):
        assert rows % 4 == 0
        return np.arange(rows)

    monkeypatch.setattr(stages, "rows_here", by_four)
    until, both = {3: 2}, made({3: 2}, last=8)
    both[0] = dataclasses.replace(both[0], run=None)
    batches = StagedBatches(loader(), both, None)
    for start in (3, 7):
        assert rows_of(batches, start) == by_hand(loader(), until, last=8)[start:]
    with pytest.raises(UserError, match="step 2: devices do not divide its batch of 2 rows"):
        rows_of(batches, 1)


def test_rows_are_cut_in_the_stages_of_a_length():
    both = [*made({4: 6})]
    both[0] = dataclasses.replace(both[0], values={"sequence_length": 2})
    both[1] = dataclasses.replace(both[1], values={"sequence_length": 4})
    asked = []

    def cut(batch, length):
        asked.append(length)
        return batch

    rows_of(StagedBatches(loader(), both, cut))
    assert asked == [2] * 4 + [4] * 20


def test_the_documents_of_cut_rows_are_theirs():
    class OfDocuments(Numbered):
        def batch(self, rows):
            return {"segments": np.tile([1, 1, 2, 3], (len(rows), 1))}

        def documents(self, rows):
            return [row * 10 + np.arange(3) for row in rows]

    whole = dataclasses.replace(loader(), rows=OfDocuments(37))
    found = StagedBatches(whole, made({4: 3}, length=2), None).documents_at(5)
    assert [each.tolist() for each in found] == expected_documents(whole)


def expected_documents(whole):
    """Of step 5, of which the first 4 read 3 rows each and the next one 6."""
    places = range(4 * 3 + 6, 4 * 3 + 12)
    rows = [whole._row(place) for place in places]
    return [[row * 10 + k for k in range(half, 3)] for row in rows for half in (0, 1)]


def test_the_rows_before_a_step_are_counted(rng):
    @dataclasses.dataclass(frozen=True)
    class Train:
        batch_size: int
        until: dict

    @dataclasses.dataclass(frozen=True)
    class Config:
        train: Train

    for until in SCHEDULES:
        config = Config(Train(6, {"batch_size": {str(end): rows for end, rows in reversed(until.items())}}))
        for step in range(STEPS):
            assert rows_before(config, step) == sum(size_at(s, until, 6) for s in range(step))


@dataclasses.dataclass(frozen=True)
class Peak:
    """A run with a rate at the peak."""

    rate: float

    def peak_rate(self):
        return self.rate


class Measured:
    """What a meter asks of `Stages`: the first two steps have 10 tokens, the others 40."""

    def __init__(self):
        few, many = Peak(100.0), Peak(50.0)
        self.both = [Stage(0, 2, 1, few, {"batch_size": 1}), Stage(2, FOREVER, 4, many, {"batch_size": 4})]
        self.memory_gb = {few: 1.0, many: 4.0}

    def at(self, done):
        return self.both[done >= 2]

    def tokens(self, stage):
        return 10 * stage.values["batch_size"]


def test_tokens_and_flops_of_a_window_are_those_of_its_steps(monkeypatch):
    now = 0.0
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now)
    meter = StagedMeter(
        stages=Measured(), tokens_per_step=99, learning_rate=lambda n: 0.0, started=0.0,
        watch=Watch(TrainConfig()), peak_rate=lambda: None, step_gb=lambda: 1.0,
    )  # fmt: skip

    def take(step, seconds):
        nonlocal now
        now += seconds
        meter.read(step, {"loss": Sum(1.0, 1.0)})

    take(1, 7)
    take(2, 1)
    take(3, 2)
    with meter.pause():
        now += 100  # it compiles
    take(4, 2)
    found = meter.window()
    assert found["train/tokens_per_second"] == pytest.approx((10 + 40 + 40) / 5)
    assert found["train/seconds_per_step"] == pytest.approx(5 / 3)
    # A step of the first stage would take 10 / 100 s at the peak, one of the second 40 / 50 s.
    assert found["train/mfu"] == pytest.approx((0.1 + 0.8 + 0.8) / 5)
    assert found["train/step_gb"] == 4 and found["train/batch_size"] == 4
    take(5, 2)
    last = meter.window()
    assert last["train/tokens_per_second"] == pytest.approx(20) and "train/step_gb" not in last
