"""Products of rows with the kernel of their group; the rows of a group follow one another."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from transformer.devices import platform
from transformer.layers.dot import dot

SMALLEST, LARGEST = 64, 2048
"""The fewest and most rows of a block. With fewer a GPU would wait for its kernels' starts; with 2,048 it
multiplies for longer than it reads."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def grouped(x_pni, kernel_gio, sizes_pg, dtype, rows, inside, outside):
    """x . kernel_g, (p, n, i) . (g, i, o) -> (p, n, o), for the first sizes_0 of n rows with the kernel of
    group 0, and so on; numbers as `contract`.

    The mesh axes `rows` divide p, `inside` i and `outside` o.
    """
    return _grouped_forward(x_pni, kernel_gio, sizes_pg, dtype, rows, inside, outside)[0]


def _grouped_forward(x_pni, kernel_gio, sizes_pg, dtype, rows, inside, outside):
    low_x, low_kernel = x_pni.astype(dtype), kernel_gio.astype(dtype)
    y = _forward(low_x, low_kernel, sizes_pg, rows, inside, outside)
    return y, (low_x, low_kernel, sizes_pg, jnp.zeros(0, x_pni.dtype))


def _grouped_backward(dtype, rows, inside, outside, residuals, dy_pno):
    # Autodiff would compute the kernel's gradient in bfloat16, the type of the forward operands.
    x_pni, kernel_gio, sizes_pg, like_x = residuals
    dy_pno = dy_pno.astype(dtype)
    dx = _forward(dy_pno, kernel_gio, sizes_pg, rows, inside, outside, transposed=True)

    def of_kernel(x_pni: jax.Array, dy_pno: jax.Array, sizes_pg: jax.Array) -> jax.Array:
        d_kernel = outer_products(x_pni[0], dy_pno[0], sizes_pg[0])
        return jax.lax.psum(d_kernel, rows) if rows else d_kernel

    specs = PartitionSpec(rows, None, inside), PartitionSpec(rows, None, outside), PartitionSpec(rows)
    d_kernel = _on_each(of_kernel, specs, PartitionSpec(None, inside, outside))(x_pni, dy_pno, sizes_pg)
    return dx.astype(like_x.dtype), d_kernel, None


grouped.defvjp(_grouped_forward, _grouped_backward)


def _forward(x_pni, kernel_gio, sizes_pg, rows, inside, outside, transposed=False):
    over, left = (outside, inside) if transposed else (inside, outside)

    def product(x_pni: jax.Array, kernel_gio: jax.Array, sizes_pg: jax.Array) -> jax.Array:
        y_pno = products(x_pni[0], kernel_gio, sizes_pg[0], transposed)[None]
        return jax.lax.psum(y_pno, over) if over else y_pno

    specs = PartitionSpec(rows, None, over), PartitionSpec(None, inside, outside), PartitionSpec(rows)
    return _on_each(product, specs, PartitionSpec(rows, None, left))(x_pni, kernel_gio, sizes_pg)


def products(
    x_ni: jax.Array, kernel_gio: jax.Array, sizes_g: jax.Array, transposed: bool = False
) -> jax.Array:
    """x . kernel_g, (n, i) . (g, i, o) -> (n, o), of the type of x and summed in float32; of `transposed`
    kernels (g, o, i)."""
    n, size = len(x_ni), rows_of_blocks(len(x_ni), len(sizes_g))
    if not size:
        kernel_gio = kernel_gio.swapaxes(1, 2) if transposed else kernel_gio
        y_no = jax.lax.ragged_dot(x_ni, kernel_gio, sizes_g, preferred_element_type=jnp.float32)
        return y_no.astype(x_ni.dtype)
    blocks, x_mi = Blocks.of(sizes_g, n, size), jnp.pad(x_ni, ((0, size), (0, 0)))
    axis = 1 if transposed else 0

    def multiply(j: jax.Array, y_mo: jax.Array) -> jax.Array:
        kernel = kernel_gio[blocks.groups_j[j]]
        y_so = dot(blocks.rows(x_mi, j), kernel, range(1, 2), range(axis, axis + 1), y_mo.dtype)
        # The rows of the next groups in it are computed again by their own blocks, which come later.
        return jax.lax.dynamic_update_slice_in_dim(y_mo, y_so, blocks.firsts_j[j], axis=0)

    y_mo = jnp.zeros((n + size, kernel_gio.shape[1 if transposed else 2]), x_ni.dtype)
    return jax.lax.fori_loop(0, len(blocks.groups_j), multiply, y_mo)[:n]


def outer_products(x_ni: jax.Array, y_no: jax.Array, sizes_g: jax.Array) -> jax.Array:
    """The sum of the outer products of the rows of each group, (n, i) x (n, o) -> (g, i, o) float32."""
    n, size = len(x_ni), rows_of_blocks(len(x_ni), len(sizes_g))
    if not size:
        over_n = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
        return jax.lax.ragged_dot_general(x_ni, y_no, sizes_g, over_n, preferred_element_type=jnp.float32)
    blocks = Blocks.of(sizes_g, n, size)
    padded = [jnp.pad(rows_n, ((0, size), (0, 0))) for rows_n in (x_ni, y_no)]

    def add(j: jax.Array, sums_gio: jax.Array) -> jax.Array:
        own_s1 = (blocks.firsts_j[j] + jnp.arange(size) < blocks.ends_j[j])[:, None]
        # Both, as 0 times NaN is NaN.
        x_si, y_so = (jnp.where(own_s1, blocks.rows(rows_n, j), 0) for rows_n in padded)
        return sums_gio.at[blocks.groups_j[j]].add(dot(x_si, y_so, range(1), range(1), sums_gio.dtype))

    sums_gio = jnp.zeros((len(sizes_g), x_ni.shape[1], y_no.shape[1]), jnp.float32)
    return jax.lax.fori_loop(0, len(blocks.groups_j), add, sums_gio)


@struct.dataclass
class Blocks:
    """Blocks of `size` rows from `firsts_j` on, in order; those before `ends_j` are rows of the group
    `groups_j`. Blocks that are left over start after all rows, and have none."""

    groups_j: jax.Array
    firsts_j: jax.Array
    ends_j: jax.Array
    size: int = struct.field(pytree_node=False)

    @classmethod
    def of(cls, sizes_g: jax.Array, n: int, size: int) -> "Blocks":
        """As many blocks as n rows of groups of any sizes may need, where each group starts a block."""
        number_g = -(-sizes_g // size)
        j = jnp.arange((n + len(sizes_g) * (size - 1)) // size)
        after_g, ends_g = jnp.cumsum(number_g), jnp.cumsum(sizes_g)
        groups_j = jnp.sum(j[:, None] >= after_g, axis=1)
        left_j = groups_j == len(sizes_g)
        groups_j = jnp.where(left_j, len(sizes_g) - 1, groups_j)
        within_j = j - (after_g - number_g)[groups_j]
        firsts_j = jnp.where(left_j, n, (ends_g - sizes_g)[groups_j] + size * within_j)
        return cls(groups_j, firsts_j, ends_g[groups_j], size)

    def rows(self, x_md: jax.Array, j: jax.Array) -> jax.Array:
        """(size, d): those of block j, also behind its own."""
        return jax.lax.dynamic_slice_in_dim(x_md, self.firsts_j[j], self.size, axis=0)


def rows_of_blocks(n: int, groups: int) -> int:
    """The rows of a block for n rows of that many groups, a power of two; 0: XLA's own product is taken.

    Blocks that are not full, at most one of each group, cost at most about a quarter of n more, and on GPUs,
    where larger ones make up for reading a kernel for each, half. TPUs have a kernel for grouped products.
    Elsewhere XLA multiplies all rows with the kernels of all groups, which is less where both are few.
    """
    share = 4 if platform() == "cpu" else 2
    size = 2 ** round(math.log2(max(1, n / (share * groups))))
    size = min(max(size, SMALLEST), LARGEST)
    computed = (n + groups * (size - 1)) // size * size
    return size if platform() != "tpu" and computed < 0.75 * groups * n else 0


def _on_each(f: Callable, in_specs: tuple[PartitionSpec, ...], out_specs: PartitionSpec) -> Callable:
    """f on each device, on its part of the arguments: a grouped product is not divided by XLA itself."""
    mesh = jax.sharding.get_abstract_mesh()
    if all(mesh.shape[axis] == 1 for axis in mesh.auto_axes):  # also where each runs a program of its own
        return f
    return jax.shard_map(f, in_specs=in_specs, out_specs=out_specs, check_vma=False)
