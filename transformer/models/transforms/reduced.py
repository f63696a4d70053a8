"""Parameters for decoding in fewer bytes than those of training."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp

from transformer.errors import UserError
from transformer.layers.quantized import KINDS, Quantized, is_quantized

SUMMED: dict[str, tuple[int, ...]] = {
    r"attention/(query|key|value|rotary_query)/kernel": (-3,),
    r"attention/output/kernel": (-3, -2),
    r"attention/(latent|rotary_key)/kernel": (-2,),
    r"feed_forward/(.*/)?(gate|up|down)/kernel": (-2,),
    r"embedding/table": (-1,),
    r"unembedding/kernel": (-2,),
    r"(input|recurrent|bridge)/kernel": (-3,),
    r"(attention/(query|key)|combine)/kernel": (-2,),
}
"""Parameters that are reduced, regular expressions for the ends of their paths, and the axes that a product
with them sums over: with one scale along these, x . kernel = (x . values) scale. The first with no more axes
than the parameter counts: recurrent models attend with one head, whose kernels are matrices."""

WEIGHTS = ("float32", "bfloat16", *KINDS)
"""The types that the parameters of products may have in decoding."""


def reduced(params: Any, kind: str) -> Any:
    """The parameters with those of `SUMMED` in the type `kind` of `WEIGHTS`; the others, norms and biases
    above all, stay as they are, and so do those that are reduced already.

    In "int8" and "float8" they are `Quantized`, with a scale for each output channel of each layer, or for
    each row of the table of embeddings. One is reduced at a time, so that what no one else holds of `params`
    is freed on the way.
    """
    if kind == "float32":
        return params
    entries, tree = jax.tree_util.tree_flatten_with_path(params, is_leaf=is_quantized)
    del params
    paths, leaves = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in entries], []
    entries = [leaf for _, leaf in reversed(entries)]
    for path in paths:
        leaf: Any = entries.pop()
        axes = _axes(path, len(leaf.shape))
        leaves.append(leaf if axes is None or is_quantized(leaf) else _reduce(leaf, kind, axes))
    return jax.tree.unflatten(tree, leaves)


def _axes(path: str, ndim: int) -> tuple[int, ...] | None:
    ends = (end for end, axes in SUMMED.items() if ndim >= -min(axes) and re.search(f"(^|[/_]){end}$", path))
    return next((SUMMED[end] for end in ends), None)


@functools.partial(jax.jit, static_argnames=("kind", "axes"))
def _reduce(x: jax.Array, kind: str, axes: tuple[int, ...]) -> jax.Array | Quantized:
    return x.astype(jnp.bfloat16) if kind == "bfloat16" else Quantized.of(x, kind, axes)


def check_cache(key: str, kind: str, has_keys: bool) -> None:
    """Refuses the value `kind` of a key for the type of cached keys and values if a model caches none."""
    if kind != "auto" and not has_keys:
        raise UserError(f"{key}: {kind!r}; expected 'auto': this model caches states, no keys and values")
