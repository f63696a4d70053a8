"""What several processes decide together, by clocks that are simulated: each process is a thread."""

import threading
import types
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from transformer.training.extras import agreement
from transformer.training.extras.agreement import SECONDS, Agreement


@pytest.fixture
def simulate(monkeypatch):
    """(steps, seconds of a step by process and step, value by process and step) -> for each process the steps
    that they ask at, and what they agree on after each step."""
    this = threading.local()

    def run(steps, seconds, value=lambda process, step: 0, processes=2):
        barrier, given = threading.Barrier(processes, timeout=10), [[0]] * processes

        def gathered(values):
            this.asked.append(this.step)
            given[this.process] = values
            barrier.wait()
            found = np.array(given, np.int32)
            barrier.wait()
            return found

        def process(number):
            this.process, this.now, this.asked = number, 100.0 * number, []
            decided, found = Agreement(), []
            for this.step in range(1, steps + 1):
                this.now += seconds(number, this.step)
                found.append(decided.largest(this.step, value(number, this.step), 0))
            return this.asked, found

        monkeypatch.setattr(agreement, "_gathered", gathered)
        with ThreadPoolExecutor(processes) as pool:
            return [*pool.map(process, range(processes))]

    monkeypatch.setattr(agreement, "time", types.SimpleNamespace(monotonic=lambda: this.now))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    return run


def same(found):
    asked, decided = found[0]
    assert all(each == (asked, decided) for each in found)
    return asked, decided


@pytest.mark.parametrize("seconds", [0.0003, 0.02, 0.5, 1.0])
def test_they_ask_one_another_every_few_seconds(simulate, seconds):
    asked, _ = same(simulate(int(60 / seconds) if seconds > 0.01 else 40_000, lambda process, step: seconds))
    gaps = np.diff(asked)
    wanted = int(SECONDS / seconds + 1e-6)
    assert np.all(gaps <= wanted) and np.all(gaps[1:] <= 2 * gaps[:-1])
    assert np.all(gaps[int(np.log2(wanted)) + 2 :] >= 0.99 * wanted)


def test_after_every_step_if_it_takes_long(simulate):
    asked, _ = same(simulate(9, lambda process, step: 60.0))
    assert asked == [*range(1, 10)]


def test_the_first_step_compiles_and_later_ones_become_slower(simulate):
    def seconds(process, step):
        return 90.0 if step == 1 else 0.02 if step < 1000 else 10.0

    asked, _ = same(simulate(1200, seconds))
    assert len([step for step in asked if step < 1000]) < 15
    late = [step for step in asked if step >= 1000]  # the first one finds the mean of quick and slow steps
    assert late[0] < 1000 + SECONDS / 0.02 and late[1] < late[0] + SECONDS / 0.02
    assert late[2:] == [*range(late[1] + 1, 1201)]


def test_by_the_slowest_clock_at_the_same_steps(simulate):
    asked, _ = same(simulate(2000, lambda process, step: 0.01 * (1 + process), processes=3))
    assert np.max(np.diff(asked)) == pytest.approx(SECONDS / 0.03, abs=1)


def test_what_one_gives_all_get_at_the_next_agreement(simulate):
    asked, decided = same(simulate(500, lambda *_: 0.1, lambda process, step: 15 * (process and step >= 200)))
    first = next(step for step in asked if step >= 200)
    assert first < 200 + SECONDS / 0.1
    assert [step for step, values in enumerate(decided, 1) if values != (0, 0)] == [
        step for step in asked if step >= first
    ]
    assert decided[first - 1] == (15, 0)


def test_a_single_process_asks_nobody(monkeypatch):
    monkeypatch.delattr(agreement, "_gathered")
    alone = Agreement()
    assert [alone.largest(step, step, 0) for step in (1, 2, 3)] == [(1, 0), (2, 0), (3, 0)]
