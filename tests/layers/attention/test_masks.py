import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.errors import UserError
from transformer.layers.attention.masks import Mask, positions_in
from transformer.layers.attention.patterns import PATTERNS, Blocks, Fixed, Global, Strided, Window


def brute_force(mask: Mask, b: int, t: int, s: int) -> np.ndarray:
    allowed = np.zeros((b, 1, t, s), bool)
    for row in range(b):
        for query in range(t):
            i = (
                mask.start + query
                if mask.query_indices_bt is None
                else int(mask.query_indices_bt[row, query])
            )
            for j in range(s):
                ok = not mask.causal or j <= i
                ok &= mask.pattern is None or i - j < mask.pattern.size
                if mask.query_segments_bt is not None:
                    ok &= bool(mask.query_segments_bt[row, query] == mask.key_segments_bs[row, j])
                if mask.key_valid_bs is not None:
                    ok &= bool(mask.key_valid_bs[row, j])
                allowed[row, 0, query, j] = ok
    return allowed


def random_mask(rng: np.random.Generator, b: int, t: int, s: int) -> Mask:
    causal, static = bool(rng.integers(2)), bool(rng.integers(2))
    return Mask(
        query_segments_bt=jnp.asarray(rng.integers(0, 3, (b, t))),
        key_segments_bs=jnp.asarray(rng.integers(0, 3, (b, s))),
        key_valid_bs=jnp.asarray(rng.integers(0, 2, (b, s)).astype(bool)) if rng.integers(2) else None,
        query_indices_bt=None if static else jnp.asarray(rng.integers(0, s, (b, t))),
        start=int(rng.integers(s)) if static else 0,
        causal=causal,
        pattern=Window(int(rng.integers(1, s + 1))) if causal and rng.integers(2) else None,
    )


@pytest.mark.thorough
def test_dense_equals_its_definition(rng):
    for _ in range(20):
        b, t, s = rng.integers(1, 7, 3).tolist()
        mask = random_mask(rng, b, t, s)
        dense = np.broadcast_to(jax.jit(lambda mask=mask, t=t, s=s: mask.dense(t, s))(), (b, 1, t, s))
        np.testing.assert_array_equal(dense, brute_force(mask, b, t, s))


def test_a_block_is_a_part_of_the_whole(rng):
    for _ in range(5):
        mask = random_mask(rng, 2, 9, 11)
        whole = np.broadcast_to(mask.dense(9, 11), (2, 1, 9, 11))
        block = np.broadcast_to(mask.block(2, 5, 3, 8), (2, 1, 5, 8))
        np.testing.assert_array_equal(block, whole[:, :, 2:7, 3:11])


@pytest.mark.parametrize("n", [1, 3, 7])
def test_a_window_of_n_sees_exactly_n_keys(n):
    seen = np.asarray(Mask(causal=True, pattern=Window(n)).dense(20, 20)).sum(-1)[0, 0]
    np.testing.assert_array_equal(seen, np.minimum(np.arange(20) + 1, n))


def test_impossible_masks_and_patterns_are_refused():
    with pytest.raises(UserError, match="segments"):
        Mask(query_segments_bt=jnp.zeros((1, 2), jnp.int32))
    for make in (
        lambda: Window(0),
        lambda: Strided(-1),
        lambda: Fixed(4, 5),
        lambda: Global(3, 0),
        lambda: Blocks(0),
    ):
        with pytest.raises(UserError, match="expected at"):
            make()
    with pytest.raises(UserError, match="positions"):
        Mask(key_positions_bs=jnp.zeros((1, 2), jnp.int32))


@pytest.mark.parametrize("added", [0, 3])
def test_no_one_sees_what_a_mask_is_lengthened_by(rng, added):
    for _ in range(5):
        mask = random_mask(rng, 2, 5, 7)
        padded = mask.pad(5, 7, 5 + added, 7 + added).dense(5 + added, 7 + added)
        longer = np.broadcast_to(padded, (2, 1, 5 + added, 7 + added))
        np.testing.assert_array_equal(longer[:, :, :5, :7], np.broadcast_to(mask.dense(5, 7), (2, 1, 5, 7)))
        assert not longer[..., 7:].any()


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", [Fixed(4, 2), Global(2, 3), Blocks(2), Window(2), Strided(3)], ids=repr)
def test_a_pattern_is_that_of_the_positions_of_a_document(rng, pattern):
    first, n = int(rng.integers(1, 6)), 9
    places = jnp.arange(first + n)[None]
    places = jnp.where(places < first, places, places - first)
    mask = Mask(query_positions_bt=places, key_positions_bs=places, pattern=pattern)
    packed = np.asarray(mask.dense(first + n, first + n))[0, 0, first:, first:]
    np.testing.assert_array_equal(packed, Mask(pattern=pattern).dense(n, n)[0, 0])


PATTERN_BY_DEFINITION = {
    Window(3, 2): lambda i, j: j in (i - 4, i - 2, i, i + 2, i + 4),
    Strided(4): lambda i, j: -4 < i - j < 4 or (i - j) % 4 == 0,
    Fixed(4, 2): lambda i, j: i // 4 == j // 4 or j % 4 in (2, 3),
    Global(2, 3): lambda i, j: j in (i - 1, i, i + 1) or i < 3 or j < 3,
}


@pytest.mark.parametrize("pattern", PATTERN_BY_DEFINITION, ids=repr)
def test_patterns_are_their_definitions(pattern):
    by_definition = [[PATTERN_BY_DEFINITION[pattern](i, j) for j in range(19)] for i in range(23)]
    np.testing.assert_array_equal(Mask(pattern=pattern).dense(23, 19)[0, 0], by_definition)


def test_every_pattern_is_tested():
    tested = {type(pattern) for pattern in PATTERN_BY_DEFINITION} | {Blocks}
    assert {type(make(4, 2)) for make in PATTERNS.values() if make} == tested


@pytest.mark.thorough
def test_each_seed_draws_other_blocks_for_its_heads(rng):
    seeds, t = rng.integers(0, 500, 3), 40
    pattern = Blocks(2, drawn=2, per_head=True)
    mask = Mask(causal=True, pattern=pattern, seeds_d=jnp.asarray(seeds), heads_per_seed=2)
    expected = [Mask(causal=True, pattern=Blocks(2, drawn=2, seed=int(n))).dense(t, t)[0, 0] for n in seeds]
    np.testing.assert_array_equal(mask.dense(t, t)[0], np.repeat(expected, 2, axis=0))


def test_consecutive_seeds_draw_independently():
    """At any distance two of them draw the same of the a + 1 blocks up to block a in 1 of a + 1 cases."""
    a_n1, seeds = np.arange(8, 60)[:, None], np.arange(128)
    drawn = Blocks(1, seed=seeds)._drawn(a_n1, 0)
    same = [np.mean(drawn[:, step:] == drawn[:, :-step]) for step in range(1, 65)]
    assert max(same) < 0.12 and abs(np.mean(same) - np.mean(1 / (a_n1 + 1))) < 0.01


def test_blocks_see_themselves_their_neighbours_the_first_and_some_drawn():
    seen = np.asarray(Mask(pattern=Blocks(2, drawn=2)).dense(40, 40)[0, 0])
    blocks = seen.reshape(20, 2, 20, 2)
    np.testing.assert_array_equal(blocks.any(axis=(1, 3)), blocks.all(axis=(1, 3)))  # whole blocks only
    blocks = blocks.all(axis=(1, 3))
    for a in range(20):
        assert blocks[a, max(0, a - 1) : a + 2].all() and blocks[a, 0] and blocks[0, a]
    np.testing.assert_array_equal(blocks, blocks.T)  # encoders see later blocks too
    np.testing.assert_array_equal(
        blocks, np.asarray(Mask(pattern=Blocks(2, drawn=2)).dense(60, 60))[0, 0, :40:2, :40:2]
    )
    assert 20 * 3 < np.tril(blocks)[1:].sum() < 20 * 5


def test_positions_count_in_each_segment():
    rows = [[1, 1, 1, 2, 2, 0, 0], [3, 1, 3, 3, 2, 2, 2], [0] * 7]
    expected = [[0, 1, 2, 0, 1, 0, 1], [0, 0, 0, 1, 0, 1, 2], [*range(7)]]
    np.testing.assert_array_equal(positions_in(jnp.array(rows)), expected)
    np.testing.assert_array_equal(Mask.self_attention(jnp.array(rows), None).positions((3, 7)), expected)
    np.testing.assert_array_equal(Mask.self_attention(None, None).positions((2, 3)), [[0, 1, 2]] * 2)
