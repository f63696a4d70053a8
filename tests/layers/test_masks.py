import jax.numpy as jnp
import numpy as np
import pytest

from transformer.errors import UserError
from transformer.layers.masks import Mask


def brute_force(mask: Mask, b: int, t: int, s: int) -> np.ndarray:
    allowed = np.zeros((b, 1, t, s), bool)
    for row in range(b):
        for query in range(t):
            i = query if mask.query_indices_bt is None else int(mask.query_indices_bt[row, query])
            for j in range(s):
                ok = not mask.causal or j <= i
                ok &= mask.window is None or i - j < mask.window
                if mask.query_segments_bt is not None:
                    ok &= bool(mask.query_segments_bt[row, query] == mask.key_segments_bs[row, j])
                if mask.key_valid_bs is not None:
                    ok &= bool(mask.key_valid_bs[row, j])
                allowed[row, 0, query, j] = ok
    return allowed


def random_mask(rng: np.random.Generator, b: int, t: int, s: int) -> Mask:
    causal = bool(rng.integers(2))
    return Mask(
        query_segments_bt=jnp.asarray(rng.integers(0, 3, (b, t))),
        key_segments_bs=jnp.asarray(rng.integers(0, 3, (b, s))),
        key_valid_bs=jnp.asarray(rng.integers(0, 2, (b, s)).astype(bool)) if rng.integers(2) else None,
        query_indices_bt=jnp.asarray(rng.integers(0, s, (b, t))) if rng.integers(2) else None,
        causal=causal,
        window=int(rng.integers(1, s + 1)) if causal and rng.integers(2) else None,
    )


def test_dense_equals_its_definition(rng):
    for _ in range(20):
        b, t, s = rng.integers(1, 7, 3)
        mask = random_mask(rng, b, t, s)
        dense = np.broadcast_to(mask.dense(int(t), int(s)), (b, 1, t, s))
        np.testing.assert_array_equal(dense, brute_force(mask, b, t, s))


def test_a_block_is_a_part_of_the_whole(rng):
    mask = random_mask(rng, 2, 9, 11)
    whole = np.broadcast_to(mask.dense(9, 11), (2, 1, 9, 11))
    block = np.broadcast_to(mask.dense_block(2, 7, 3, 11), (2, 1, 5, 8))
    np.testing.assert_array_equal(block, whole[:, :, 2:7, 3:11])


@pytest.mark.parametrize("n", [1, 3, 7])
def test_a_window_of_n_sees_exactly_n_keys(n):
    seen = np.asarray(Mask(causal=True, window=n).dense(20, 20)).sum(-1)[0, 0]
    np.testing.assert_array_equal(seen, np.minimum(np.arange(20) + 1, n))


@pytest.mark.parametrize(
    "fields",
    [
        {"causal": True, "window": 0},
        {"window": 4},
        {"query_segments_bt": jnp.zeros((1, 2), jnp.int32)},
    ],
)
def test_impossible_masks_are_refused(fields):
    with pytest.raises(UserError, match=r"window|segments"):
        Mask(**fields)
