import numpy as np
import pytest

from tests.data.documents import cache_of
from tests.data.test_packing import random_texts
from transformer.data.loader import DataLoader
from transformer.data.text.packed_text import PackedRows, StreamRows


@pytest.mark.parametrize("streams", [1, 3, 8])
def test_each_batch_continues_the_one_before(rng, tmp_path, streams):
    cache, _ = cache_of(random_texts(rng, count=9), "bytes", tmp_path)
    rows = PackedRows(cache, 5)
    loader = DataLoader(StreamRows(rows, streams), streams)
    batches = [loader.batch_at(step) for step in range(len(loader))]
    of_streams = {name: np.stack([batch[name] for batch in batches], axis=1) for name in batches[0]}

    # End to end, the streams are the corpus: every target once, each document with a number of its own.
    whole = {name: of_streams[name].reshape(-1) for name in ("tokens", "targets", "weights", "segments")}
    count = len(cache.tokens) - 1
    np.testing.assert_array_equal(whole["tokens"][:count], cache.tokens[:-1])
    np.testing.assert_array_equal(whole["targets"][:count], cache.tokens[1:])
    assert whole["weights"].sum() == rows.batch(np.arange(len(rows)))["weights"].sum()
    document = np.searchsorted(cache.offsets, np.arange(count), side="right")
    np.testing.assert_array_equal(whole["segments"][:count], document)
    assert not whole["segments"][count:].any() and not whole["weights"][count:].any()

    continues = of_streams["continues"].reshape(streams, -1)
    assert not continues[:, 0].any() and continues[:, 1:].all()


def test_a_second_pass_continues_nothing(rng, tmp_path):
    cache, _ = cache_of(random_texts(rng, count=5), "bytes", tmp_path)
    loader = DataLoader(StreamRows(PackedRows(cache, 5), 2), 2, repeat=True)
    first, again = loader.batch_at(0), loader.batch_at(len(loader))
    for name, values in first.items():
        np.testing.assert_array_equal(again[name], values)


@pytest.mark.parametrize(("streams", "ahead"), [(1, 3), (2, 1), (3, 2), (3, 99)])
def test_what_is_read_ahead_of_a_stream_continues_into_it_and_counts_once(rng, tmp_path, streams, ahead):
    cache, _ = cache_of(random_texts(rng, count=9), "bytes", tmp_path)
    rows = PackedRows(cache, 5)
    plain, read = StreamRows(rows, streams), StreamRows(rows, streams, ahead)
    each, extra = len(plain) // streams, len(read) // streams - len(plain) // streams
    assert extra == min(ahead, each * (streams - 1))
    batch, own = (of.batch(np.arange(len(of))) for of in (read, plain))
    by_place = {name: values.reshape(-1, streams, *values.shape[1:]) for name, values in batch.items()}
    for name in ("weights", "bytes"):
        np.testing.assert_array_equal(by_place[name][extra:].reshape(own[name].shape), own[name])
        assert not by_place[name][:extra].any()
    for stream in range(streams):
        began = max(0, stream * each - extra)
        found = by_place["tokens"][:, stream].reshape(-1)[5 * (extra - stream * each + began) :]
        expected = cache.tokens[:-1][5 * began :][: len(found)]
        np.testing.assert_array_equal(found[: len(expected)], expected)
