"""Value embeddings: chosen layers add a learned embedding of each token to the values of their attention."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from transformer.errors import UserError
from transformer.layers.block import Block
from transformer.layers.mixers import MultiHeadAttention
from transformer.layers.stack import Stack
from transformer.layers.variants.skips import UShaped

ADDED = "added"
"""The name of what is added to a layer's values, (b, t, g, k), beside the parameters of its attention."""


class ValueEmbedded(MultiHeadAttention, kw_only=True):  # type: ignore[call-arg]
    """Multi-head attention over the values W x + `ADDED`, which are also those in its cache."""

    def keys_values(self, x_bsd: jax.Array, positions_bs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Keys and values of g heads."""
        k_bsgk, v_bsgk = super().keys_values(x_bsd, positions_bs)
        if self.has_variable("params", ADDED):  # a layer that was chosen
            v_bsgk = v_bsgk + self.get_variable("params", ADDED)
        return k_bsgk, v_bsgk


@dataclasses.dataclass(frozen=True)
class Values(Stack):
    """A stack that takes (x, {layer: (b, t, g, k), which is added to its values}) in place of x."""

    def declare(self, owner: Any, name: str, x_btd: Any) -> Any:
        """See `Stack.declare`."""
        return super().declare(owner, name, x_btd[0])

    def unstack(self, params: Any) -> list[Any]:
        """See `Stack.unstack`; of parameters that are unstacked already, themselves."""
        return params if isinstance(params, list) else super().unstack(params)

    def run(self, owner: Any, name: str, params: Any, x_btd: Any, **inputs: Any) -> Any:
        """See `Stack.run`."""
        x_btd, added = x_btd
        return super().run(owner, name, _with_values(self.unstack(params), added), x_btd, **inputs)

    def extend(self, layers: list[Any], x_btd: Any, *given: Any, **inputs: Any) -> Any:
        """See `Stack.extend`."""
        x_btd, added = x_btd
        return super().extend(_with_values(layers, added), x_btd, *given, **inputs)


@dataclasses.dataclass(frozen=True)
class UShapedValues(Values, UShaped):
    """The same with U-shaped skips."""


def with_values(stack: Stack, chosen: Sequence[int]) -> Stack:
    """The stack, whose layers `chosen` take values to add.

    Raises:
      UserError: there is no such layer, it has another mixer than multi-head attention, or the layers are to
        be scanned, which needs them all alike.
    """
    key = f"config.model.value_embeddings: {tuple(chosen)}"
    if stack.scan:
        raise UserError(f"{key} with scan_layers true; expected false")
    places = places_of(stack, chosen)
    if len({*places}) < len(places) or not all(0 <= i < stack.num_layers for i in places):
        raise UserError(f"{key}; expected different layers of 0 to {stack.num_layers - 1}, -1 for the last")
    if bad := [i for i in places if type(stack.block(i).mixer) is not MultiHeadAttention]:
        raise UserError(f"{key}: the mixer of layer {bad[0]} is not 'multi_head', which alone can have them")

    def adding(block: Block) -> Block:
        if type(block.mixer) is not MultiHeadAttention:
            return block
        fields = {field.name: getattr(block.mixer, field.name) for field in dataclasses.fields(block.mixer)}
        return block.clone(mixer=ValueEmbedded(**fields | {"parent": None}))

    make = UShapedValues if isinstance(stack, UShaped) else Values
    own = {field.name: getattr(stack, field.name) for field in dataclasses.fields(stack)}
    return make(**own | {"blocks": tuple(map(adding, stack.blocks))})


def places_of(stack: Stack, chosen: Sequence[int]) -> list[int]:
    """The chosen layers, counted from the first."""
    return [i + stack.num_layers if i < 0 else i for i in chosen]


def _with_values(layers: list[Any], added: dict[int, jax.Array]) -> list[Any]:
    return [
        {**layer, "attention": {**layer["attention"], ADDED: added[i]}} if i in added else layer
        for i, layer in enumerate(layers)
    ]
