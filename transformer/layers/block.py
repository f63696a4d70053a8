"""One Transformer block: attention and feed-forward, each a residual sublayer with normalisation."""

from collections.abc import Callable

import jax
from flax import linen as nn

from transformer.layers.attention import Attention
from transformer.layers.cache import LayerCache
from transformer.layers.feed_forward import FeedForward

PLACEMENTS = ("pre", "post", "sandwich")


class Block(nn.Module):
    """Two residual sublayers, attention then feed-forward, each normalised where `placement` says:

    post:      x <- Norm(x + Dropout(f(x)))              (Vaswani et al. 2017, section 3.1)
    pre:       x <- x + Dropout(f(Norm(x)))              (Xiong et al. 2020)
    sandwich:  x <- x + Dropout(Norm(f(Norm(x))))        (Ding et al. 2021, CogView, section 2.4)

    `norm` builds a normalisation module from its name.
    """

    attention: Attention
    feed_forward: FeedForward
    norm: Callable[..., nn.Module]
    placement: str = "pre"
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self, x_btd: jax.Array, cache: LayerCache | None = None, *, train: bool = False, **attention_inputs
    ) -> tuple[jax.Array, LayerCache | None]:
        """(b, t, d) -> (b, t, d), and the layer's new cache; `attention_inputs` go to `Attention`."""

        def attend(x_btd: jax.Array) -> tuple[jax.Array, LayerCache | None]:
            return self.attention(x_btd, cache=cache, train=train, **attention_inputs)

        x_btd, new_cache = self._sublayer("attention", x_btd, attend, train)
        x_btd, _ = self._sublayer("feed_forward", x_btd, lambda x: (self.feed_forward(x), None), train)
        return x_btd, new_cache

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
