"""The Vision Transformer: a Transformer encoder over the patches of an image."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.config import Positive, PositiveFloat, Rate
from transformer.errors import UserError
from transformer.layers.linear import Linear
from transformer.models.classifier import ClassifierHead, pool
from transformer.models.decoder_config import StackConfig
from transformer.models.encoder import Encoder


@dataclass(frozen=True)
class VisionConfig(StackConfig):
    """The config of an image classifier."""

    harmless: ClassVar = (*StackConfig.harmless, "head_dropout")
    vocab_size: ClassVar = 0  # it has no tokens

    position: str = "learned"
    max_length: Positive = 256  # most patches per image, [CLS] included
    patch_size: Positive = 2  # side of a patch, in pixels
    pooling: Literal["mean", "cls", "max"] = "mean"  # pooling over patches; cls: a class token before them
    head_dropout: Rate = 0.0  # dropout rate before the classification head
    pixel_mean: float = 127.5  # subtracted from every pixel (0 to 255)
    pixel_scale: PositiveFloat = 127.5  # then pixels are divided by this

    def length(self, image_size: int) -> int:
        """The sequence length of a square image of `image_size` pixels, including `[CLS]`.

        Raises:
          UserError: the patch size does not divide the image size, or the sequence exceeds `max_length`.
        """
        if image_size % self.patch_size:
            raise UserError(f"patch_size: {self.patch_size} does not divide data.image_size {image_size}")
        length = (image_size // self.patch_size) ** 2 + (self.pooling == "cls")
        if length > self.max_length:
            among = ", [CLS] among them" if self.pooling == "cls" else ""
            raise UserError(f"max_length: {self.max_length}; an image has {length:,} patches{among}")
        return length

    def grid(self, image_size: int) -> tuple[int, int]:
        """The rows of learned positions before those of the patches, and the number of patches to a side."""
        return self.position_offset + (self.pooling == "cls"), image_size // self.patch_size


def resized_positions(
    table_pd: jax.Array, before: tuple[int, int], after: tuple[int, int], rows: int
) -> jax.Array:
    """(p, d) -> (rows, d): learned positions of the patches of one grid for those of another (see `grid`).

    They are interpolated bilinearly between the centres of patches, so that each place in the image keeps its
    vector; the row of a class token, before them, is kept. All other rows are 0; of these only that of a new
    class token is read. Source: Dosovitskiy et al. 2021, section 3.2.
    """
    (first, side), (new_first, new_side), width = before, after, table_pd.shape[1]
    image_hwd = table_pd[first : first + side * side].reshape(side, side, width)
    image_hwd = jax.image.resize(image_hwd, (new_side, new_side, width), "linear")
    count = min(first, new_first)
    resized_pd = jnp.concatenate([table_pd[first - count : first], image_hwd.reshape(-1, width)])
    end = new_first + new_side * new_side
    return jnp.zeros((rows, width), table_pd.dtype).at[new_first - count : end].set(resized_pd)


def patches(x_bhwc: jax.Array, size: int) -> jax.Array:
    """(b, h, w, c) -> (b, n, size size c), the n = (h / size)(w / size) patches of each image, row by row:

    patch[i (w / size) + j, (u size + v) c + k] = x[i size + u, j size + v, k].

    A linear map of the patches is a convolution with kernel size and stride `size`. Source: Dosovitskiy et
    al. 2021, section 3.1.
    """
    b, h, w, c = x_bhwc.shape
    x = x_bhwc.reshape(b, h // size, size, w // size, size, c).swapaxes(2, 3)
    return x.reshape(b, -1, size * size * c)


class VisionTransformer(nn.Module):
    """p(class | image) = softmax(Head(Pool(Encoder([CLS]; patches W + b)))).

    Pixels are normalised to (pixel - pixel_mean) / pixel_scale. With `pooling` "cls" a learned `[CLS]`
    precedes the patches; otherwise the mean or maximum over patches is classified, which works as well (Zhai
    et al. 2022, "Scaling vision transformers", section 3). Without classes the result is the pooled vector,
    by `pooling` if it is not "". Source: Dosovitskiy et al. 2021, equations 1 to 4.
    """

    config: VisionConfig
    num_classes: int
    pooling: str = ""

    vocab_size = 0  # it has no tokens

    @nn.compact
    def __call__(self, images_bhwc: jax.Array, train: bool = False) -> jax.Array:
        """(b, h, w, c) uint8 -> float32 logits (b, classes), or without classes vectors (b, d)."""
        c = self.config
        x_bhwc = (images_bhwc.astype(jnp.float32) - c.pixel_mean) / c.pixel_scale
        embed = Linear((c.d_model,), names=("patch", "embed"), dtype=c.dtype, name="embedding")
        x_btd = embed(patches(x_bhwc, c.patch_size))
        if c.pooling == "cls":
            init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("embed",))
            cls_d = self.param("cls", init, (c.d_model,), jnp.float32).astype(x_btd.dtype)
            first_b1d = jnp.broadcast_to(cls_d, (x_btd.shape[0], 1, c.d_model))
            x_btd = jnp.concatenate([first_b1d, x_btd], axis=1)
        x_btd = Encoder(c, name="trunk")(x_btd, train=train)
        x_b1d = pool(self.pooling or c.pooling, x_btd, jnp.ones(x_btd.shape[:2], jnp.int32), 1)
        if not self.num_classes:
            return x_b1d[:, 0].astype(jnp.float32)
        return ClassifierHead(self.num_classes, c.head_dropout, c.dtype, name="head")(x_b1d, train)[:, 0]


class ImageEmbedder(nn.Module):
    """v W, a linear map of the vector v of a `VisionTransformer` without classes.

    Source: Radford et al. 2021 (CLIP), figure 3.
    """

    config: VisionConfig
    width: int
    pooling: str = ""

    @nn.compact
    def __call__(self, images_bhwc: jax.Array, train: bool = False) -> jax.Array:
        """(b, h, w, c) uint8 -> float32 (b, width)."""
        c = self.config
        x_bd = VisionTransformer(c, 0, self.pooling, name="encoder")(images_bhwc, train)
        linear = Linear((self.width,), ("embed", None), use_bias=False, dtype=c.dtype, name="project")
        return linear(x_bd).astype(jnp.float32)
