"""Grouped products, in blocks and by XLA, against loops over groups in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.planning.test_hlo import flops
from transformer.layers.variants import grouped
from transformer.layers.variants.grouped import Blocks, outer_products, products, rows_of_blocks
from transformer.planning.hlo import Program

INSIDE, OUTSIDE = 5, 7
SIZES = {
    "even": (12, 12, 12, 12),
    "empty groups": (0, 31, 0, 0, 17, 0),
    "the last": (0, 0, 0, 40),
    "the first": (40, 0, 0, 0),
    "a row each": (1,) * 24,
    "uneven": (3, 30, 1, 8, 4, 4),
}


@pytest.fixture(params=[2, 4, 0], ids=["blocks of 2", "blocks of 4", "XLA"])
def size(request, monkeypatch):
    monkeypatch.setattr(grouped, "rows_of_blocks", lambda n, groups: request.param)
    return request.param


def drawn(rng, sizes, dtype=np.float32):
    n = sum(sizes)
    shapes = (n, INSIDE), (len(sizes), INSIDE, OUTSIDE), (n, OUTSIDE)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes], jnp.array(sizes, jnp.int32)


def parts(sizes):
    """The rows of each group."""
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_against_float64(sizes, size, rng):
    (x, kernel, y), sizes_g = drawn(rng, sizes)
    x64, kernel64, y64 = (np.float64(each) for each in (x, kernel, y))
    expected = np.concatenate([x64[part] @ kernel64[g] for g, part in enumerate(parts(sizes))])
    np.testing.assert_allclose(jax.jit(products)(x, kernel, sizes_g), expected, atol=1e-5)
    expected = [x64[part].T @ y64[part] for part in parts(sizes)]
    np.testing.assert_allclose(jax.jit(outer_products)(x, y, sizes_g), expected, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_those_of_a_product_of_each_row(dtype, size, rng):
    (x, kernel, dy), sizes_g = drawn(rng, SIZES["uneven"])
    group_n = np.repeat(np.arange(len(sizes_g)), sizes_g)

    def by_row(x, kernel):
        return jnp.einsum("ni,nio->no", x, kernel[group_n])

    def in_groups(x, kernel):
        return grouped.grouped(x[None], kernel, sizes_g[None], dtype, (), (), ())[0]

    expected, back = jax.vjp(by_row, x, kernel)
    found, back_in_groups = jax.vjp(jax.jit(in_groups), x, kernel)
    assert found.dtype == dtype
    tolerance = {"float32": 1e-6, "bfloat16": 0.02}[dtype]
    pairs = [(found, expected), *zip(back_in_groups(dy.astype(dtype)), back(dy), strict=True)]
    for a, b in pairs:
        assert np.linalg.norm(a.astype(jnp.float32) - b) < tolerance * np.linalg.norm(b)
    assert all(a.dtype == jnp.float32 for a, _ in pairs[1:])


def test_what_is_not_finite_stays_in_its_group(size, rng):
    (x, kernel, y), sizes_g = drawn(rng, (9, 8, 7))
    x, y = x.at[10, 1].set(np.nan), y.at[9, 2].set(np.inf)
    finite = np.isfinite(products(x, kernel, sizes_g)).all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(~finite), [10])
    sums = outer_products(x, y, sizes_g)
    np.testing.assert_array_equal(np.isfinite(sums).all(axis=(1, 2)), [True, False, True])


@pytest.mark.thorough
def test_blocks_have_every_row_once(rng):
    blocks_of = jax.jit(Blocks.of, static_argnums=(1, 2))
    for _ in range(12):
        groups, n, size = rng.integers(1, 9), int(rng.integers(1, 60)), int(2 ** rng.integers(0, 5))
        for _ in range(20):
            sizes = rng.multinomial(n, rng.dirichlet(np.full(groups, 0.5)))
            blocks = jax.device_get(blocks_of(jnp.array(sizes, jnp.int32), n, size))
            owned = []
            for group, first, end in zip(blocks.groups_j, blocks.firsts_j, blocks.ends_j, strict=True):
                rows = [*range(first, min(first + size, end))]
                assert first <= n and set(rows) <= set(range(n)[parts(sizes)[group]])
                owned += rows
            assert owned == [*range(n)]


def test_fewer_products_than_all_rows_with_all_kernels(rng):
    n, groups, width = 4096, 8, 16
    x, kernel = jnp.zeros((n, width)), jnp.zeros((groups, width, width))
    sizes_g = jnp.full(groups, n // groups)
    for f, given in ((products, (x, kernel, sizes_g)), (outer_products, (x, x, sizes_g))):
        program = Program.read(jax.jit(f).lower(*given).compile().as_text())
        assert 1 <= flops(program) / (2 * n * width**2) <= 1.3


def test_when_blocks_are_smaller_work(monkeypatch):
    assert rows_of_blocks(16_384, 8) == 512
    assert rows_of_blocks(2**20, 4) == 2048
    assert rows_of_blocks(256, 8) == 64
    assert [rows_of_blocks(n, 8) for n in (0, 1, 16, 64)] == [0] * 4
    assert rows_of_blocks(4096, 1) == 0
    assert rows_of_blocks(4096, 2) == 512
    monkeypatch.setattr(grouped, "platform", lambda: "nvidia")
    assert rows_of_blocks(16_384, 8) == 1024
    monkeypatch.setattr(grouped, "platform", lambda: "tpu")
    assert rows_of_blocks(16_384, 8) == 0
