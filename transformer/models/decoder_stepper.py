"""A decoder behind the `Stepper` protocol: new tokens on top of a cache."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer.layers.block import Block
from transformer.layers.cache import Cache
from transformer.layers.masks import Mask
from transformer.layers.stack import extend_stack, unstack
from transformer.models.decoder import Decoder


def extend(
    model: nn.Module,
    params: Any,
    layers: list[Any],
    blocks: Sequence[Block],
    tokens_bt: jax.Array,
    cache: Cache,
    start: jax.Array | int,
    **inputs: Any,
) -> tuple[jax.Array, Cache]:
    """Embeds new tokens and applies the blocks to them on top of a cache, whose slots they fill from `start`
    on: (b, t) -> (b, t, d), before the final normalisation; `inputs` as for `extend_stack`."""
    cache = cache.own(start)
    slots_t = start + jnp.arange(tokens_bt.shape[1])
    positions_bt = jnp.maximum(slots_t - cache.offsets_b[:, None], 0)
    x_btd = model.apply({"params": params}, tokens_bt, positions_bt, method="embed")
    key_positions_bs = cache.positions_bs
    # From slot 0 on, queries stand where the keys do, which is what the kernels of training ask for.
    indices_bt = (
        None if isinstance(start, int) and start == 0 else jnp.broadcast_to(slots_t, positions_bt.shape)
    )
    x_btd, extended = extend_stack(
        blocks,
        layers,
        x_btd,
        cache.layers,
        mask=Mask(
            query_indices_bt=indices_bt,
            key_valid_bs=key_positions_bs >= 0,
            ancestors_mrs=cache.ancestors_mrs,
            origins_b=cache.offsets_b,
            causal=True,
        ),
        positions_bt=positions_bt,
        start=start,
        key_positions_bs=key_positions_bs,
        **inputs,
    )
    filled_b = cache.filled_b + tokens_bt.shape[1]
    return x_btd, dataclasses.replace(cache, layers=extended, filled_b=filled_b)


@struct.dataclass
class DecoderStepper:
    """A decoder and its parameters behind the `Stepper` protocol (see `transformer.decoding.stepper`).

    Build it with `of`, which takes the stacked block parameters apart once, outside every loop:
    `layers` has one tree per block, `params` everything else.
    """

    params: Any
    layers: list[Any]
    model: Decoder = struct.field(pytree_node=False)

    @classmethod
    def of(cls, model: Decoder, params: Any) -> "DecoderStepper":
        """From the parameters as they are trained and saved."""
        others = {name: value for name, value in params.items() if name != "blocks"}
        return cls(others, unstack(params["blocks"]), model)

    @property
    def vocab_size(self) -> int:
        """The number of real tokens."""
        return self.model.vocab_size

    def prefill(
        self, tokens_bt: jax.Array, lengths_b: jax.Array, room: int, rewound: int = 0
    ) -> tuple[jax.Array, Cache]:
        """Reads right-padded prompts; the logits are those after each row's last token."""
        c, width = self.model.config, tokens_bt.shape[1]
        # The padding moves to the left, where every row ends at the same slot.
        offsets_b = width - lengths_b
        tokens_bt = jax.vmap(jnp.roll)(tokens_bt, offsets_b)
        cache = Cache.empty(c.num_layers, offsets_b, width, c.remembered, c.dtype)
        x_btd, cache = self._extend(tokens_bt, cache, start=0)
        return self._logits(x_btd[:, -1:])[:, 0], cache.grow(width + room, c.reaches, rewound)

    def step(self, tokens_b: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Appends one token to each row."""
        logits_b1v, cache = self.extend(tokens_b[:, None], cache)
        return logits_b1v[:, 0], cache

    def extend(self, tokens_bn: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """Appends n tokens to each row, in one pass."""
        x_bnd, cache = self._extend(tokens_bn, cache, start=cache.filled_b[0])
        return self._logits(x_bnd), cache

    def rewind(self, cache: Cache, n: jax.Array | int) -> Cache:
        """The cache without each row's last n tokens."""
        return cache.rewind(n)

    def repeat(self, cache: Cache, n: int) -> Cache:
        """n copies of each row, side by side."""
        return cache.repeat(n)

    def reorder(self, cache: Cache, rows_b: jax.Array) -> Cache:
        """The rows in another order, or some of them several times."""
        return cache.take(rows_b)

    def _extend(self, tokens_bt: jax.Array, cache: Cache, start: jax.Array | int) -> tuple[jax.Array, Cache]:
        blocks = self.model.config.blocks(causal=True)
        return extend(self.model, self.params, self.layers, blocks, tokens_bt, cache, start)

    def _logits(self, x_btd: jax.Array) -> jax.Array:
        def head(model: Decoder, x_btd: jax.Array) -> jax.Array:
            return model.unembed(model.normalize(x_btd))

        return self.model.apply({"params": self.params}, x_btd, method=head)[..., : self.vocab_size]
