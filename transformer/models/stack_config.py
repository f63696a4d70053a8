"""The shape of a stack of blocks, which every Transformer has, whatever goes into it and comes out."""

import functools
from dataclasses import dataclass
from typing import Any, Literal

from transformer.errors import UserError
from transformer.layers.attention import Attention
from transformer.layers.block import Block
from transformer.layers.feed_forward import FeedForward
from transformer.layers.kernels import KERNELS
from transformer.layers.normalization import NORMS
from transformer.layers.positions import POSITIONS


@dataclass(frozen=True)
class StackConfig:
    """The shape of a stack of blocks; `configs/base/` says what each key means."""

    d_model: int = 256
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 0
    head_dim: int = 0
    d_ff: int = 1024
    feed_forward: Literal["relu", "gelu", "swiglu", "geglu"] = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    norm_placement: Literal["pre", "post", "sandwich"] = "pre"
    norm_epsilon: float = 1e-6
    position: str = "rope"
    position_base: float = 10000.0
    max_length: int = 2048
    use_bias: bool = False
    attention_bias: bool = True
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    dropout: float = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    kernel: str = "auto"
    scan_layers: bool = False
    remat: Literal["none", "full", "dots"] = "none"
    lora_rank: int = 0
    lora_alpha: float = 16.0

    def __post_init__(self) -> None:
        for key in ("d_model", "num_layers", "num_heads", "d_ff", "max_length"):
            if getattr(self, key) < 1:
                raise UserError(f"{key}: {getattr(self, key)}; expected at least 1")
        for key in ("embedding_dropout", "attention_dropout", "dropout"):
            if not 0 <= getattr(self, key) < 1:
                raise UserError(f"{key}: {getattr(self, key)}; expected a rate in [0, 1)")
        if self.lora_rank < 0:
            raise UserError(f"lora_rank: {self.lora_rank}; expected a rank, or 0 for none")
        if self.head_dim < 0 or (self.head_dim == 0 and self.d_model % self.num_heads):
            raise UserError(
                f"d_model: {self.d_model} is not divisible by num_heads {self.num_heads}; set head_dim > 0"
            )
        if self.num_kv_heads < 0 or self.num_heads % (self.num_kv_heads or 1):
            raise UserError(f"num_kv_heads: {self.num_kv_heads} does not divide num_heads {self.num_heads}")
        if self.position not in POSITIONS:
            raise UserError(f"position: {self.position!r}; expected one of {', '.join(map(repr, POSITIONS))}")
        if self.position == "rope" and self.key_width % 2:
            raise UserError(f"head_dim: {self.key_width} is odd; rope turns pairs, so it must be even")
        if self.kernel not in ("auto", *KERNELS):
            raise UserError(
                f"kernel: {self.kernel!r}; expected 'auto' or one of {', '.join(map(repr, KERNELS))}"
            )

    @property
    def key_width(self) -> int:
        """The width k of one head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """The number g of key/value heads."""
        return self.num_kv_heads or self.num_heads

    def block(self, num_layers: int = 0, cross: bool = False) -> Block:
        """One block of a stack of `num_layers` (0: the config's), with attention to another sequence if
        `cross`; bound to no parent."""
        # A stack of n blocks adds 2 n terms (3 n with a third sublayer) to the residual stream; without
        # post-normalisation the terms' variance is divided by that number, so that the sum starts at one's
        # scale (Radford et al. 2019).
        terms = (3 if cross else 2) * (num_layers or self.num_layers)
        shared = {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "output_scale": 1.0 if self.norm_placement == "post" else 1.0 / terms,
            "parent": None,
        }
        attention = functools.partial(
            Attention,
            **shared | {"use_bias": self.use_bias and self.attention_bias},
            num_heads=self.num_heads,
            head_dim=self.key_width,
            num_kv_heads=self.kv_heads,
            kernel=self.kernel,
            dropout=self.attention_dropout,
            lora_rank=self.lora_rank,
            lora_alpha=self.lora_alpha,
        )
        return Block(
            attention=attention(position=self.positions(parent=None)),
            cross_attention=attention(position=POSITIONS["none"](parent=None)) if cross else None,
            feed_forward=FeedForward(d_ff=self.d_ff, kind=self.feed_forward, **shared),
            norm=self.normalization,
            placement=self.norm_placement,
            dropout=self.dropout,
            parent=None,
        )

    @property
    def running(self) -> dict[str, Any]:
        """What `run_blocks` is to know of how the blocks are run."""
        dropping = self.dropout > 0 or self.attention_dropout > 0
        return {"dropping": dropping, "scan": self.scan_layers, "remat": self.remat}

    @property
    def normalization(self) -> functools.partial:
        """Builds a normalisation module."""
        return functools.partial(NORMS[self.norm], epsilon=self.norm_epsilon, use_bias=self.use_bias)

    @property
    def positions(self) -> functools.partial:
        """Builds the position encoding."""
        return functools.partial(
            POSITIONS[self.position], base=self.position_base, max_length=self.max_length
        )
