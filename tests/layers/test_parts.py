"""The parts of patterns: which pairs of blocks are computed, and how many too many."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

from tests.layers.test_kernels import segments
from transformer.layers.kernels.parts import parts_of
from transformer.layers.masks import Mask
from transformer.layers.patterns import PATTERNS, Blocks, Fixed, Global, OtherRuns, Outside, Strided, Window

SHIPPED = [Window(64), Window(32, 4), Global(64, 4), Strided(32), Fixed(32, 4), Blocks(32)]
"""Those of configs/attention.py."""


def covered(mask, t, s):
    """How many parts compute each pair of a query and a key of the sequence."""
    found = np.zeros((t, s), int)
    for part in parts_of(mask, t, s):
        places = [side.places for side in (part.queries, part.keys)]
        places = [np.arange(n)[None] if x is None else x for x, n in zip(places, (t, s), strict=True)]
        allowed = np.asarray(part.mask(mask, 1).dense(part.queries.whole, part.keys.whole))
        allowed = np.broadcast_to(allowed, (len(places[0]), *allowed.shape[1:]))
        blocks = np.repeat(np.repeat(part.blocks.seen, part.blocks.sizes[0], 0), part.blocks.sizes[1], 1)
        for row, seen in enumerate(allowed[:, 0]):
            assert not (seen & ~blocks).any()  # no block is skipped that has an allowed pair
            for a, i in enumerate(places[0][row]):
                js = places[1][row][seen[a, : places[1].shape[1]]]
                if i >= 0:
                    np.add.at(found[i], js, 1)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("make", [name for name, make in PATTERNS.items() if make])
@pytest.mark.parametrize("causal", [True, False])
def test_parts_have_every_pair_of_a_pattern_once(rng, make, causal):
    for start in (0, 0, *rng.integers(1, 20, 2).tolist()):
        size, extra = int(rng.integers(1, 9)), int(rng.integers(1, 4))
        pattern = PATTERNS[make](max(size, extra), extra)
        t = int(rng.integers(1, 20))
        s = start + t if causal else int(rng.integers(1, 40))
        mask = Mask(causal=causal, pattern=pattern, start=start)
        expected = np.asarray(mask.dense(t, s))[0, 0]
        np.testing.assert_array_equal(covered(mask, t, s), expected, err_msg=f"{mask} {t} {s}")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [None, 64, 90, 128, 256])
def test_at_most_twice_the_allowed_pairs_are_computed(causal, size):
    """Of 4,096 tokens, whose blocks of full attention would be up to 33 times as many."""
    t = 4096
    patterns = SHIPPED
    if size is not None:
        kinds = (Window, Strided, Fixed, Global, Blocks, lambda n: Window(n, 4), lambda n: Fixed(n, 4))
        patterns = [kind(size) for kind in kinds]
    i, j = np.arange(t)[:, None], np.arange(t)[None]
    for pattern in patterns:
        allowed = np.sum(pattern(i, j) & ((j <= i) | (not causal)))
        computed = sum(part.pairs for part in parts_of(Mask(causal=causal, pattern=pattern), t, t))
        assert allowed <= computed <= 2 * allowed, (pattern, computed / allowed)


@pytest.mark.parametrize(
    "make",
    [
        lambda n, m: Window(n, m),
        lambda n, m: Strided(n),
        lambda n, m: Fixed(n, min(n, m)),
        lambda n, m: Global(n, m),
        lambda n, m: Blocks(n, m),
        lambda n, m: Outside(n),
        lambda n, m: OtherRuns(n, m, True),
        lambda n, m: OtherRuns(n, m, False),
    ],
    ids=["window", "strided", "fixed", "global", "blocks", "outside", "later_runs", "other_runs"],
)
def test_a_block_that_touches_nothing_has_no_allowed_pair(rng, make):
    """And one that touches has any, except where the bounds are said to leave it open."""
    wrong = skipped = 0
    for _ in range(1000):
        pattern = make(*rng.integers(1, 7, 2).tolist())
        (i, j), (u, w) = rng.integers(0, 30, 2), rng.integers(1, 6, 2)
        touches = bool(pattern.touches((i, i + u - 1), (j, j + w - 1)))
        allowed = bool(np.any(pattern(np.arange(i, i + u)[:, None], np.arange(j, j + w)[None])))
        assert touches or not allowed
        wrong += touches and not allowed
        skipped += not touches
    if not isinstance(pattern, Strided):  # whose parts have the test
        assert skipped and wrong < (300 if isinstance(pattern, Window | Blocks) else 1)


def test_documents_and_padding_are_skipped(rng):
    """Of packed rows, the blocks of other documents and of padding."""
    t, n = 1024, 256
    numbers = np.repeat(np.arange(1, t // n + 1), n)[None]
    mask = Mask(jnp.asarray(numbers), jnp.asarray(numbers), causal=True)
    (part,) = parts_of(mask, t, t)
    whole, within = part.blocks.seen.sum(), n // part.blocks.sizes[0]
    _, counts = part.table(part.mask(mask, 1), mask)
    assert int(counts.sum()) == t // n * within * (within + 1) // 2 <= whole / 3
    valid = Mask(key_valid_bs=jnp.asarray(np.arange(t)[None] >= 700))
    (part,) = parts_of(valid, t, t)
    table, counts = part.table(part.mask(valid, 1), valid)
    first = 700 // part.blocks.sizes[1]
    np.testing.assert_array_equal(counts, t // part.blocks.sizes[1] - first)
    np.testing.assert_array_equal(table[:, 0], first)


@pytest.mark.thorough
def test_the_visible_blocks_of_packed_rows_have_every_allowed_pair(rng):
    t = 96
    for pattern in [None, *SHIPPED, Blocks(8), Global(8, 2), Fixed(24, 2)]:
        numbers = segments(rng, 2, t)
        places = np.stack([_within(row) for row in numbers])
        mask = Mask.self_attention(jnp.asarray(numbers), jnp.asarray(places), causal=True)
        mask = mask.replace(pattern=pattern)
        for part in parts_of(mask, t, t):
            view = part.mask(mask, 2)
            dense = np.asarray(view.dense(part.queries.whole, part.keys.whole)).any(axis=(0, 1))
            (u, w), (n, m) = part.blocks.sizes, part.blocks.seen.shape
            needed = dense.reshape(n, u, m, w).any(axis=(1, 3))
            table, counts = part.table(view, mask)
            for row, blocks, count in zip(needed, table, counts, strict=True):
                assert set(np.flatnonzero(row)) <= set(np.asarray(blocks[:count]).tolist())


@pytest.mark.parametrize("pattern", [Global(64, 4), Blocks(32), Fixed(512, 4)], ids=repr)
def test_positions_of_documents_cost_little_more_than_indices(rng, pattern):
    """At most twice the allowed pairs for one document, a few times as many for those that begin anywhere."""
    t = 2048
    for cuts, most in (([], 2), (np.sort(rng.integers(1, t, 2)), 5)):
        numbers = 1 + np.searchsorted(cuts, np.arange(t), side="right")[None]
        places = jnp.asarray(_within(numbers[0])[None])
        mask = Mask.self_attention(jnp.asarray(numbers), places, causal=True).replace(pattern=pattern)
        (part,) = parts_of(mask, t, t)
        _, counts = part.table(part.mask(mask, 1), mask)
        computed = int(counts.sum()) * np.prod(part.blocks.sizes)
        assert computed <= most * int(mask.dense(t, t).sum())


def _within(numbers):
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    return (
        np.arange(len(numbers)) - begins[np.searchsorted(begins, np.arange(len(numbers)), side="right") - 1]
    )


def test_the_blocks_of_long_rows_are_found_at_once():
    before = time.process_time()
    for pattern in (None, *SHIPPED):
        parts_of(Mask(causal=True, pattern=pattern), 2**16, 2**16)
    assert time.process_time() - before < 0.5 * (1 + len(SHIPPED))
