"""A Transformer block: a mixer and a feed-forward network, with residuals and normalisation."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.devices import sharded_over
from transformer.errors import UserError
from transformer.layers.attention.cache import KVCache
from transformer.layers.attention.masks import Mask
from transformer.layers.mixers import Attention, Mixer

BEFORE, BEHIND = ("pre", "sandwich"), ("sandwich", "output")
"""The placements with norms of what sublayers read, and of what they return."""


class Block(nn.Module):
    """A mixer and a feed-forward network as residual sublayers, normalised by `placement`:

    post:      x <- Norm(x + Dropout(f(x)))              (Vaswani et al. 2017, section 3.1)
    pre:       x <- x + Dropout(f(Norm(x)))              (Xiong et al. 2020)
    sandwich:  x <- x + Dropout(Norm(f(Norm(x))))        (Ding et al. 2021, CogView, section 2.4)
    output:    x <- x + Dropout(Norm(f(x)))              (OLMo Team 2025, OLMo 2, section 3.3.1)

    `parallel` sublayers are one, f(x) = Mixer(x) + FeedForward(x), with the norms of the mixer (Wang and
    Komatsuzaki 2021, GPT-J; Chowdhery et al. 2022, PaLM, section 2).

    `norm` builds a normalisation module from its name; without `attention_norm` the mixer's input is x
    itself. With `cross_attention`, which has no position encoding, a third sublayer between the two attends
    to another sequence, the memory. Without `feed_forward` there is only attention (Elhage et al. 2021).
    """

    mixer: Mixer
    feed_forward: nn.Module | None
    norm: Callable[..., nn.Module]
    placement: str = "pre"
    dropout: float = 0.0
    cross_attention: Attention | None = None
    parallel: bool = False
    attention_norm: bool = True

    preserve_adopted_names: ClassVar[bool] = True
    """For flax: the mixer's parameters keep the name that it was built with."""

    @nn.compact
    def __call__(
        self,
        x_btd: jax.Array,
        cache: Any = None,
        memory: jax.Array | KVCache | None = None,
        *,
        memory_mask: Mask | None = None,
        train: bool = False,
        **inputs: Any,
    ) -> tuple[jax.Array, Any]:
        """(b, t, d) -> (b, t, d), and the mixer's new cache; `inputs` as for `Mixer`.

        `memory` is (m, s, d), or its `keys_values`; groups of b / m adjacent rows of x share one of its rows.
        """
        options = {"segments_bt": inputs.get("mask", Mask()).query_segments_bt, "train": train}
        x_normal_btd = self._before("attention", x_btd)
        y_btd, cache = self.mixer(x_normal_btd, cache=cache, train=train, **inputs)
        if self.parallel and self.feed_forward is not None:
            y_btd = y_btd + self.feed_forward(self.beside(x_btd, x_normal_btd), **options)
        x_btd = self._after("attention", x_btd, y_btd, train)
        if self.cross_attention is not None:
            y_btd = self._cross(self._before("cross_attention", x_btd), memory, memory_mask or Mask(), train)
            x_btd = self._after("cross_attention", x_btd, y_btd, train)
        if self.feed_forward is not None and not self.parallel:
            y_btd = self.feed_forward(self._before("feed_forward", x_btd), **options)
            x_btd = self._after("feed_forward", x_btd, y_btd, train)
        return x_btd, cache

    def keys_values(self, memory_msd: jax.Array) -> KVCache:
        """The keys and values of another sequence, (m, s, d), for `memory`."""
        assert self.cross_attention is not None
        places_1s = jnp.arange(memory_msd.shape[1])[None]
        return KVCache.of(*self.cross_attention.keys_values(memory_msd, places_1s))

    def beside(self, x_btd: jax.Array, x_normal_btd: jax.Array) -> jax.Array:
        """The input of a parallel feed-forward network, from that of the block and that of the mixer."""
        return x_normal_btd

    def _before(self, name: str, x_btd: jax.Array) -> jax.Array:
        if self.placement in BEFORE and (self.attention_norm or name != "attention"):
            x_btd = self.norm(name=f"{name}_norm")(x_btd)
        return _divided(x_btd, "length")

    def _after(self, name: str, x_btd: jax.Array, y_btd: jax.Array, train: bool) -> jax.Array:
        if self.placement in BEHIND:
            y_btd = self.norm(name=f"{name}_output_norm")(y_btd)
        if self.dropout:
            y_btd = nn.Dropout(self.dropout, name=f"{name}_dropout")(y_btd, deterministic=not train)
        if y_btd.shape != x_btd.shape:  # a width or a length of 1 would be broadcast
            error = f"{name}: norm and {type(getattr(self, name, self.mixer)).__name__} return {y_btd.shape}"
            raise UserError(f"{error} for {x_btd.shape}; expected the same shape")
        y_btd = y_btd.astype(x_btd.dtype)  # residuals are of one type, whatever modules return
        # First as it is computed: else XLA would gather what it is a product of, over `context`.
        x_btd = _divided(x_btd + _divided(_divided(y_btd, "length"), "residual_length"), "residual_length")
        if self.placement == "post":
            x_btd = self.norm(name=f"{name}_norm")(x_btd).astype(x_btd.dtype)
        return x_btd

    def _cross(self, x_btd: jax.Array, memory: Any, mask: Mask, train: bool) -> jax.Array:
        memory = memory if isinstance(memory, KVCache) else self.keys_values(memory)
        # Queries are independent of each other, so those of rows with the same memory can be one row.
        x_mtd = x_btd.reshape(memory.key_bgsk.shape[0], -1, x_btd.shape[-1])
        zeros_mt = jnp.zeros(x_mtd.shape[:2], jnp.int32)
        assert self.cross_attention is not None
        y_mtd, _ = self.cross_attention(x_mtd, mask=mask, positions_bt=zeros_mt, memory=memory, train=train)
        return y_mtd.reshape(x_btd.shape)


def _divided(x_btd: jax.Array, length: str) -> jax.Array:
    """x, its tokens divided over devices as the logical axis `length`, if they are a multiple of these."""
    fits = x_btd.shape[1] % sharded_over(length)[1] == 0
    return nn.with_logical_constraint(x_btd, ("batch", length, "activation_embed")) if fits else x_btd
