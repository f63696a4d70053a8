"""A stepper as two StableHLO programs of fixed shapes, which run without this library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from transformer.decoding.stepper import Stepper

LAYOUTS = jax_export.DisabledSafetyCheck.custom_call("LayoutConstraint")
"""Products in bfloat16 on a CPU ask for a layout (`by_rows`), which JAX does not count among what it keeps
compatible; the results do not depend on it."""


@dataclass(frozen=True)
class Programs:
    """`prefill(weights, tokens_bt, lengths_b) -> (logits_bv, cache)` and `step(weights, tokens_b, cache) ->
    (logits_bv, cache)` as serialized by `jax.export`, and the weights by name. In the programs weights and
    cache are lists of arrays, the weights in the order of the dictionary."""

    prefill: bytes
    step: bytes
    weights: dict[str, np.ndarray]


def export(stepper: Stepper, batch: int, length: int, room: int, platforms: Sequence[str] = ()) -> Programs:
    """Exports a stepper for `batch` rows of right-padded prompts of at most `length` tokens and `room` new
    ones, for platforms of JAX ("cpu", "cuda", "rocm", "tpu"), by default the present one. Call it without a
    mesh."""
    entries, tree = jax.tree_util.tree_flatten_with_path(stepper)
    weights = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in entries}
    assert len(weights) == len(entries), "two weights have one name"
    tokens_bt = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    tokens_b = jax.ShapeDtypeStruct((batch,), jnp.int32)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in weights.values()]

    def whole(weights: Any, tokens_bt: jax.Array, lengths_b: jax.Array) -> tuple:
        return jax.tree.unflatten(tree, weights).prefill(tokens_bt, lengths_b, room)

    _, cache = jax.eval_shape(whole, shapes, tokens_bt, tokens_b)
    leaves, structure = jax.tree.flatten(cache)

    def prefill(weights: Any, tokens_bt: jax.Array, lengths_b: jax.Array) -> tuple:
        logits_bv, cache = whole(weights, tokens_bt, lengths_b)
        return logits_bv, jax.tree.leaves(cache)

    def step(weights: Any, tokens_b: jax.Array, cache: Any) -> tuple:
        logits_bv, after = jax.tree.unflatten(tree, weights).step(
            tokens_b, jax.tree.unflatten(structure, cache)
        )
        return logits_bv, jax.tree.leaves(after)

    def serialized(function: Callable[..., tuple], *arguments: Any) -> bytes:
        options: Any = {"platforms": platforms or None, "disabled_checks": [LAYOUTS]}
        exported = jax_export.export(jax.jit(function), **options)(*arguments)
        return bytes(exported.serialize())

    return Programs(
        serialized(prefill, shapes, tokens_bt, tokens_b),
        serialized(step, shapes, tokens_b, leaves),
        {name: np.asarray(leaf) for name, leaf in weights.items()},
    )
