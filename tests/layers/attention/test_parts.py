"""The parts of patterns: which pairs of blocks are computed, and how many too many."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.layers.attention.test_kernels import assert_exact, segments
from transformer.layers.attention.kernels import blockwise, parts
from transformer.layers.attention.kernels.parts import computed_pairs, parts_of
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import PATTERNS, Blocks, Fixed, Global, Strided, Window
from transformer.layers.attention.patterns.fixed import OtherRuns
from transformer.layers.attention.patterns.window import Outside
from transformer.layers.attention.products import allowed_pairs

SHIPPED = [Window(64), Window(32, 4), Global(64, 4), Strided(32), Fixed(32, 4), Blocks(32)]
"""Those of configs/attention.py."""


def covered(mask, t, s):
    """How many parts compute each pair of a query and a key of the sequence."""
    found = np.zeros((t, s), int)
    for sizes, table, places, allowed in jax.tree.map(np.asarray, views(mask, t, s)):
        visible = np.zeros([n // size for n, size in zip(allowed.shape[2:], sizes, strict=True)], bool)
        for row, blocks, count in zip(visible, *table, strict=True):
            row[blocks[:count]] = True
        blocks = np.repeat(np.repeat(visible, sizes[0], 0), sizes[1], 1)
        for row, seen in enumerate(allowed[:, 0]):
            for a, i in enumerate(places[0][row]):
                if i >= 0:
                    assert not (seen[a] & ~blocks[a]).any()  # no block is skipped that has an allowed pair
                    np.add.at(found[i], places[1][row][seen[a, : places[1].shape[1]]], 1)
    return found


@functools.partial(jax.jit, static_argnums=(1, 2))
def views(mask, t, s):
    """Of each part the sizes of blocks, the table of those that are seen, the places and the mask."""
    found = []
    for part in parts_of(mask, t, s):
        view, places = part.mask(mask, 1), [places_of(side) for side in (part.queries, part.keys)]
        allowed = view.dense(part.queries.whole, part.keys.whole)
        allowed = jnp.broadcast_to(allowed, (len(places[0]), *allowed.shape[1:]))
        found.append((part.blocks.sizes, part.table(view, mask), places, allowed))
    return found


def places_of(side):
    """The indices of the tokens of a view of one row; -1: none."""
    if side.order is not None:
        return jnp.where(side.order.there, side.order.indices, -1)
    return np.arange(side.length)[None] if side.places is None else side.places


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


@pytest.mark.thorough(but=1)
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
        computed = computed_pairs(Mask(causal=causal, pattern=pattern), 1, t, t)
        assert allowed <= computed <= 2 * allowed, (pattern, computed / allowed)


@pytest.mark.thorough
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [[2048], [512] * 4])
def test_blocks_of_other_heads_are_not_computed(rng, causal, lengths):
    """At most twice the pairs that each head may see on average, of which it draws most itself."""
    t, heads, pattern = 2048, 8, Blocks(32, 4, per_head=True)
    mask = Mask(causal=causal, pattern=pattern)
    if len(lengths) > 1:
        mask = packed(np.repeat(np.arange(len(lengths)), lengths), pattern, causal)
    mask = mask.replace(seeds_d=jnp.asarray(rng.integers(0, 999, heads)))
    computed, dense = jax.jit(lambda mask: (computed_pairs(mask, 1, t, t), mask.dense(t, t)))(mask)
    assert dense.mean() * t * t <= computed <= 2 * dense.mean() * t * t
    assert dense.any(axis=1).mean() > 2 * dense.mean() or len(lengths) > 1


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


ABSOLUTE = [
    lambda n, m: Fixed(n, min(n, m)),
    lambda n, m: Global(n, m),
    lambda n, m: Blocks(n, m),
]
"""Patterns that count from the start of each document, by two sizes."""


def packed(numbers, pattern, causal):
    """The mask of one row with these numbers of documents."""
    mask = Mask.self_attention(*(jnp.asarray(x)[None] for x in (numbers, _within(numbers))), causal=causal)
    return mask.replace(pattern=pattern)


@pytest.mark.thorough
@pytest.mark.parametrize("make", ABSOLUTE, ids=["fixed", "global", "blocks"])
@pytest.mark.parametrize("causal", [True, False])
def test_parts_of_packed_rows_have_every_pair_once(rng, monkeypatch, make, causal):
    """Also in rows of many documents that are shorter than a run, and with padding, whose positions are 0."""
    monkeypatch.setattr(parts, "SIZES", (16, 8))
    pattern, t = make(*rng.integers(1, 13, 2).tolist()), 70
    for documents in (2, 3, 4, 5, 6, 40):
        numbers = 1 + np.searchsorted(np.sort(rng.integers(1, t, documents)), np.arange(t), side="right")
        mask = packed(numbers, pattern, causal)
        np.testing.assert_array_equal(covered(mask, t, t), mask.dense(t, t)[0, 0], err_msg=f"{mask}")
        end = int(rng.integers(1, t))
        places_1t = jnp.where(jnp.arange(t) < end, mask.query_positions_bt, 0)
        padded = mask.replace(query_positions_bt=places_1t, key_positions_bs=places_1t)
        padded = padded.replace(key_valid_bs=jnp.arange(t)[None] < end)
        expected = np.asarray(padded.dense(t, t))[0, 0, :end]
        np.testing.assert_array_equal(covered(padded, t, t)[:end], expected, err_msg=f"{padded}")


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", [Fixed(5, 2), Global(3, 2), Blocks(4, 2)], ids=repr)
@pytest.mark.parametrize("causal", [True, False])
def test_packed_rows_are_exact_forward_and_backward(rng, monkeypatch, pattern, causal):
    """In rows with documents at other places, with a bias and sinks."""
    monkeypatch.setattr(parts, "SIZES", (8, 4))
    numbers = segments(rng, 2, 29)
    places = np.stack([_within(row) for row in numbers])
    mask = Mask.self_attention(*map(jnp.asarray, (numbers, places)), causal=causal).replace(pattern=pattern)
    assert_exact(blockwise, rng, mask, 29, bias_heads=4, sinks=True)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pattern", [Fixed(32, 4), Global(64, 4), Blocks(32), Fixed(128, 8)], ids=repr)
def test_at_most_twice_the_allowed_pairs_of_packed_rows_are_computed(rng, pattern, causal):
    """Of whole documents it would be up to 10 times as many; where documents start anywhere it is a little
    over twice."""
    t, computed = 4096, jax.jit(computed_pairs, static_argnums=(1, 2, 3))
    for lengths, most in (([t], 2), ([512] * 8, 2), (rng.integers(300, 900, 20), 2.2)):
        numbers = np.repeat(np.arange(len(lengths)), lengths)[:t]
        allowed = sum(allowed_pairs(pattern, int(n), 0, causal) for n in np.bincount(numbers))
        assert allowed <= computed(packed(numbers, pattern, causal), 1, t, t) <= most * allowed


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
