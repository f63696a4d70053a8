"""A Transformer of vectors, that predicts a number from the last one."""

from dataclasses import dataclass

import jax
from flax import linen as nn

from transformer.layers.linear import Linear
from transformer.models.decoder_config import StackConfig
from transformer.models.encoder import Encoder


@dataclass(frozen=True)
class VectorConfig(StackConfig):
    """The config of a Transformer of vectors."""

    position: str = "none"
    projections: bool = True  # linear maps into and out of the residual stream; False: the vectors are it


class VectorTransformer(nn.Module):
    """y = u . Encoder(W x)_t, for the last of t vectors; without projections the last entry of it.

    Source: Garg et al. 2022, section 3; without projections von Oswald et al. 2023, section 3.
    """

    config: VectorConfig

    @nn.compact
    def __call__(self, x_btc: jax.Array, train: bool = False) -> jax.Array:
        """(b, t, c) -> (b,)."""
        c = self.config
        if c.projections:
            linear = {"use_bias": c.use_bias, "dtype": c.dtype}
            x_btc = Linear((c.d_model,), (None, "embed"), name="read_in", **linear)(x_btc)
        x_bd = Encoder(c, name="trunk")(x_btc.astype(c.dtype), train=train)[:, -1]
        if c.projections:
            x_bd = Linear((1,), ("embed", None), name="read_out", **linear)(x_bd)
        return x_bd[:, -1].astype("float32")
