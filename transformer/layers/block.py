"""One Transformer block: attentions and feed-forward, each a residual sublayer with normalisation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.attention import Attention
from transformer.layers.cache import LayerCache
from transformer.layers.feed_forward import FeedForward
from transformer.layers.masks import Mask

PLACEMENTS = ("pre", "post", "sandwich")


class Block(nn.Module):
    """Residual sublayers, attention then feed-forward, each normalised where `placement` says:

    post:      x <- Norm(x + Dropout(f(x)))              (Vaswani et al. 2017, section 3.1)
    pre:       x <- x + Dropout(f(Norm(x)))              (Xiong et al. 2020)
    sandwich:  x <- x + Dropout(Norm(f(Norm(x))))        (Ding et al. 2021, CogView, section 2.4)

    `norm` builds a normalisation module from its name. With `cross_attention`, whose position encoding must
    be none, there is a third sublayer between the two, which sees another sequence, the memory.
    """

    attention: Attention
    feed_forward: FeedForward
    norm: Callable[..., nn.Module]
    placement: str = "pre"
    dropout: float = 0.0
    cross_attention: Attention | None = None

    @nn.compact
    def __call__(
        self,
        x_btd: jax.Array,
        cache: LayerCache | None = None,
        memory: jax.Array | LayerCache | None = None,
        *,
        memory_mask: Mask | None = None,
        train: bool = False,
        **attention_inputs,
    ) -> tuple[jax.Array, LayerCache | None]:
        """(b, t, d) -> (b, t, d), and the layer's new cache; `attention_inputs` go to `Attention`.

        `memory` is (m, s, d), or what `remember` makes of it; b / m rows of x in turn share one of its rows.
        """

        def attend(x_btd: jax.Array) -> tuple[jax.Array, LayerCache | None]:
            return self.attention(x_btd, cache=cache, train=train, **attention_inputs)

        def attend_to_memory(x_btd: jax.Array) -> tuple[jax.Array, None]:
            assert self.cross_attention is not None
            assert memory is not None
            seen = memory if isinstance(memory, LayerCache) else self.remember(memory)
            # Queries of one memory are independent of one another: those of several rows may be one row's.
            x_mtd = x_btd.reshape(seen.key_bgsk.shape[0], -1, x_btd.shape[-1])
            positions_mt = jnp.zeros(x_mtd.shape[:2], jnp.int32)
            y_mtd, _ = self.cross_attention(
                x_mtd, mask=memory_mask or Mask(), positions_bt=positions_mt, memory=seen, train=train
            )
            return y_mtd.reshape(x_btd.shape), None

        x_btd, new_cache = self._sublayer("attention", x_btd, attend, train)
        if self.cross_attention is not None:
            x_btd, _ = self._sublayer("cross_attention", x_btd, attend_to_memory, train)
        x_btd, _ = self._sublayer("feed_forward", x_btd, lambda x: (self.feed_forward(x), None), train)
        return x_btd, new_cache

    def remember(self, memory_msd: jax.Array) -> LayerCache:
        """What this block's queries see of another sequence, (m, s, d)."""
        assert self.cross_attention is not None
        return self.cross_attention.remember(memory_msd, jnp.arange(memory_msd.shape[1])[None])

    def _sublayer(
        self, name: str, x_btd: jax.Array, f: Callable, train: bool
    ) -> tuple[jax.Array, LayerCache | None]:
        norm = self.norm(name=f"{name}_norm")
        y_btd, cache = f(x_btd if self.placement == "post" else norm(x_btd))
        if self.placement == "sandwich":
            y_btd = self.norm(name=f"{name}_output_norm")(y_btd)
        if self.dropout:
            y_btd = nn.Dropout(self.dropout, name=f"{name}_dropout")(y_btd, deterministic=not train)
        x_btd = x_btd + y_btd
        return (norm(x_btd) if self.placement == "post" else x_btd), cache
