import itertools
import threading
import time

import numpy as np
import pytest

from tests.data.documents import TEXT, cache_of
from transformer.data.loader import DataLoader, Rows
from transformer.data.text.packed_text import PackedRows


class Numbers(Rows):
    """Row i is the number i, of weight 1."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def batch(self, rows):
        return {"row": np.array(rows), "weights": (rows >= 0).astype(np.float32)}


def served(loader, batches):
    return np.concatenate([loader.batch_at(step)["row"] for step in batches])


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "batch_size"), [(1, 1), (1, 4), (7, 3), (12, 4), (100, 8), (5, 12)])
def test_every_epoch_is_a_permutation(count, batch_size, shuffle, rng):
    loader = DataLoader(
        Numbers(count), batch_size, seed=int(rng.integers(2**31)), shuffle=shuffle, repeat=True
    )
    rows = served(loader, range(-(-3 * count // batch_size)))
    epochs = [rows[epoch * count : (epoch + 1) * count] for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(count))
    if count > 50:
        assert shuffle != np.array_equal(epochs[0], epochs[1])
        assert shuffle != np.array_equal(epochs[0], range(count))


def test_the_seed_gives_the_order(rng):
    seed = int(rng.integers(2**31))

    def rows(seed, first=0):
        return served(
            DataLoader(Numbers(1000), 10, seed=seed, shuffle=True, repeat=True), range(first, first + 100)
        )

    np.testing.assert_array_equal(rows(seed), rows(seed))
    assert not np.array_equal(rows(seed), rows(seed + 1))
    # Nor is one seed's second epoch the next seed's first.
    assert not np.array_equal(rows(seed, first=100), rows(seed + 1))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("count", [1, 7, 16, 17])
def test_one_pass_serves_every_row_once_over_any_number_of_processes(count, shuffle):
    whole = None
    for processes in (1, 2, 4):
        loaders = [
            DataLoader(Numbers(count), 8, seed=3, shuffle=shuffle, needed=needed)
            for needed in np.split(np.arange(8), processes)
        ]
        assert {len(loader) for loader in loaders} == {-(-count // 8)}
        batches = [
            np.concatenate([loader.batch_at(step)["row"] for loader in loaders])
            for step in range(len(loaders[0]))
        ]
        assert all(batch.shape == (8,) for batch in batches)
        rows = np.concatenate(batches)
        assert sorted(rows[rows >= 0]) == list(range(count))
        whole = rows if whole is None else whole
        np.testing.assert_array_equal(rows, whole)
    with pytest.raises(IndexError):
        loaders[0].batch_at(len(loaders[0]))


def test_processes_share_the_batches_of_training():
    together = DataLoader(Numbers(37), 8, seed=5, shuffle=True, repeat=True)
    for processes in (2, 4):
        loaders = [
            DataLoader(Numbers(37), 8, seed=5, shuffle=True, repeat=True, needed=needed)
            for needed in np.split(np.arange(8), processes)
        ]
        for step in range(12):
            parts = [loader.batch_at(step)["row"] for loader in loaders]
            np.testing.assert_array_equal(np.concatenate(parts), together.batch_at(step)["row"])


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("repeat", [True, False])
def test_iterating_from_any_step_is_the_same_as_asking(repeat, workers):
    loader = DataLoader(Numbers(50), 4, seed=1, shuffle=True, repeat=repeat, workers=workers)
    for start in (0, 5, 12, 13):
        batches = list(itertools.islice(loader.iterate(start), 30))
        assert len(batches) == (30 if repeat else len(loader) - start)
        for step, batch in enumerate(batches, start):
            np.testing.assert_array_equal(batch["row"], loader.batch_at(step)["row"])


def test_it_works_ahead_of_who_asks():
    asked = []

    class Slow(Numbers):
        def batch(self, rows):
            asked.append(threading.current_thread())
            return super().batch(rows)

    batches = DataLoader(Slow(100), 4, repeat=True, prefetch=3).iterate(0)
    next(batches)
    deadline = time.monotonic() + 10
    while len(asked) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(asked) == 4  # the one that was asked for and three more
    assert threading.current_thread() not in asked
    batches.close()
    assert_ends(asked[0])


def assert_ends(thread):
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_background_is_raised_here(workers):
    class Broken(Numbers):
        def batch(self, rows):
            if 8 in rows:
                raise OSError("disk is gone")
            return super().batch(rows)

    batches = DataLoader(Broken(100), 4, workers=workers).iterate(0)
    assert next(batches)["row"].tolist() == [0, 1, 2, 3]
    assert next(batches)["row"].tolist() == [4, 5, 6, 7]
    before = threading.active_count()
    with pytest.raises(OSError, match="disk is gone"):
        next(batches)
    deadline = time.monotonic() + 10
    while workers and threading.active_count() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() < before + (not workers)


def test_a_process_reads_the_rows_that_it_needs_and_no_others():
    """In any order of the devices, so that it may need rows that are not neighbours, and others need too."""
    read = []

    class Counted(Numbers):
        def batch(self, rows):
            read.extend(rows.tolist())
            return super().batch(rows)

    needed = np.array([1, 2, 6])
    found = DataLoader(Counted(40), 8, needed=needed).batch_at(2)["row"]
    assert read == found.tolist() == [17, 18, 22]


def test_the_last_batch_is_filled_with_rows_of_no_weight(tmp_path):
    cache, _ = cache_of([TEXT, "short"], "bytes", tmp_path)
    rows = PackedRows(cache, 16)
    batches = list(DataLoader(rows, 7, shuffle=True).iterate(0))
    assert {values.shape for batch in batches for values in batch.values()} == {(7, 16)}
    assert sum(batch["weights"].sum() for batch in batches) == len(TEXT.encode()) + 1 + 5 + 1
    assert sum(batch["bytes"].sum() for batch in batches) == len(TEXT.encode()) + 5
    assert sum((batch["weights"].sum(axis=1) == 0).sum() for batch in batches) == 1
