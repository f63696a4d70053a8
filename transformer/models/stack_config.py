"""The shape of a stack of blocks, which every Transformer has, whatever goes into it and comes out."""

import functools
import itertools
from dataclasses import dataclass
from typing import Any, Literal

from transformer.errors import UserError
from transformer.layers.attention import ATTENTIONS
from transformer.layers.block import Block
from transformer.layers.feed_forward import FeedForward
from transformer.layers.kernels import KERNELS
from transformer.layers.normalization import NORMS
from transformer.layers.patterns import PATTERNS, Pattern
from transformer.layers.positions import POSITIONS, Position
from transformer.layers.positions.rope_scaling import SCALINGS

WITHOUT_PARAMETERS = ("none", "rope", "alibi")
"""Encodings of positions that speak up in attention alone and learn nothing."""

ADDED = ("sinusoidal", "learned")
"""Encodings of positions that are added to embeddings."""


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
    attention: str = "multi_head"
    latent_dim: int = 0
    qk_norm: bool = False
    soft_cap: float = 0.0
    sinks: bool = False
    pattern: str = "full"
    pattern_size: int = 256
    pattern_extra: int = 1
    full_every: int = 0
    position: str = "rope"
    position_base: float = 10000.0
    position_scaling: str = "none"
    position_factor: float = 1.0
    position_distance: int = 0
    full_position: str = ""
    max_length: int = 2048
    use_bias: bool = False
    attention_bias: bool = True
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    dropout: float = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    kernel: str = "auto"
    scan_layers: bool = False
    remat: Literal["none", "full", "dots", "dots_no_batch", "attention", "offload"] = "none"
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
        for key, known in (
            ("position", POSITIONS),
            ("full_position", ("", *POSITIONS)),
            ("position_scaling", SCALINGS),
            ("attention", ATTENTIONS),
            ("pattern", PATTERNS),
        ):
            if getattr(self, key) not in known:
                expected = ", ".join(map(repr, known))
                raise UserError(f"{key}: {getattr(self, key)!r}; expected one of {expected}")
        if self.kernel not in ("auto", *KERNELS):
            expected = ", ".join(map(repr, KERNELS))
            raise UserError(f"kernel: {self.kernel!r}; expected 'auto' or one of {expected}")
        for key, value in (("norm_epsilon", self.norm_epsilon), ("position_base", self.position_base)):
            if value <= 0:
                raise UserError(f"{key}: {value}; expected more than 0")
        for key in ("latent_dim", "soft_cap", "full_every", "position_distance"):
            if getattr(self, key) < 0:
                raise UserError(f"{key}: {getattr(self, key)}; expected 0 or more")
        self._check_attention()
        self._check_positions()

    def idle(self) -> dict[str, str]:
        """See `transformer.freeze.refuse_idle`."""
        found: dict[str, str] = {}
        if self.pattern == "full":
            found |= dict.fromkeys(("pattern_size", "pattern_extra"), "with pattern 'full'")
        if not self.use_bias:
            found["attention_bias"] = "with use_bias False"
        if not self.lora_rank:
            found["lora_alpha"] = "with lora_rank 0"
        if not {self.position, self.full_position} & {"rope", "sinusoidal"}:
            found["position_base"] = f"with position {self.position!r}"
        return found

    def _check_attention(self) -> None:
        try:
            PATTERNS[self.pattern](self.pattern_size, self.pattern_extra)
        except UserError as error:
            sizes = f"pattern_size: {self.pattern_size} and pattern_extra: {self.pattern_extra}"
            raise UserError(f"{sizes} with pattern {self.pattern!r}: {error}") from error
        if self.full_every and self.scan_layers and self.num_layers % self.full_every:
            raise UserError(
                f"num_layers: {self.num_layers} is not divisible by full_every {self.full_every}, which "
                "scan_layers needs"
            )
        for key, kind in (
            ("qk_norm", "multi_head"),
            ("lora_rank", "multi_head"),
            ("num_kv_heads", "multi_head"),
            ("latent_dim", "latent"),
        ):
            if getattr(self, key) and self.attention != kind:
                value = getattr(self, key)
                raise UserError(f"{key}: {value} with attention {self.attention!r}; only {kind!r} has it")

    def _check_positions(self) -> None:
        there = {self.position, self.full_position or self.position}
        if "rope" in there and self.rotated_width % 2:
            raise UserError(f"head_dim: {self.rotated_width} is odd; rope turns pairs, so it must be even")
        if self.position_scaling != "none" and "rope" not in there:
            raise UserError(
                f"position_scaling: {self.position_scaling!r} with position {self.position!r}; expected "
                "'none', or position 'rope'"
            )
        if self.position_factor < 1 or (self.position_factor > 1) != (self.position_scaling != "none"):
            raise UserError(
                f"position_factor: {self.position_factor} with position_scaling {self.position_scaling!r}; "
                "expected 1 without scaling, and more than 1 with it"
            )
        if self.position_distance and self.position not in ("t5", "shaw"):
            raise UserError(
                f"position_distance: {self.position_distance} with position {self.position!r}; expected 0, "
                "or position 't5' or 'shaw'"
            )
        if self.full_position and not self.full_every:
            raise UserError(
                f"full_position: {self.full_position!r} with full_every 0; expected '', or full_every of at "
                "least 1"
            )
        if len(there) > 1 and not there <= {*WITHOUT_PARAMETERS}:
            expected = ", ".join(map(repr, WITHOUT_PARAMETERS))
            raise UserError(
                f"full_position: {self.full_position!r} with position {self.position!r}; expected both of "
                f"{expected}, for all layers have the same parameters"
            )
        if self.attention != "multi_head" and self.position in ("shaw", "transformer_xl"):
            raise UserError(
                f"position: {self.position!r} with attention {self.attention!r}; only 'multi_head' has it"
            )

    @property
    def key_width(self) -> int:
        """The width k of one head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """The number g of key/value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def rotated_width(self) -> int:
        """The width of what positions may turn."""
        widths = {"multi_head": self.key_width, "latent": self.key_width // 2, "plain": self.d_model}
        return widths[self.attention]

    @property
    def remembered(self) -> tuple[int, int, int]:
        """What a layer keeps of each token: heads, the width of a key, the width of a value."""
        return self.blocks()[0].attention.remembered

    @property
    def reaches(self) -> tuple[int | None, ...]:
        """How many keys back each layer's queries see; None: all."""
        blocks = itertools.cycle(self.blocks(causal=True))
        return tuple(next(blocks).attention.reach for _ in range(self.num_layers))

    def blocks(self, num_layers: int = 0, *, cross: bool = False, causal: bool = False) -> tuple[Block, ...]:
        """Blocks of a stack of `num_layers` (0: the config's), bound to no parent, which take turns: of
        `full_every` the last one sees everything. With attention to another sequence if `cross`."""
        pattern = PATTERNS[self.pattern](self.pattern_size, self.pattern_extra)
        sparse = self._block(num_layers, cross, pattern, self.position, causal)
        full = self._block(num_layers, cross, None, self.full_position or self.position, causal)
        return (*[sparse] * (self.full_every - 1), full) if self.full_every else (sparse,)

    def _block(
        self, num_layers: int, cross: bool, pattern: Pattern | None, position: str, causal: bool
    ) -> Block:
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
        kind = ATTENTIONS[self.attention]
        of_kind = {"latent_dim": self.latent_dim or 2 * self.key_width}
        of_self = {"pattern": pattern, "position": self.positions(position, causal, parent=None)}
        attention = functools.partial(
            kind,
            **shared | {"use_bias": self.use_bias and self.attention_bias},
            **{key: value for key, value in of_kind.items() if key in kind.__dataclass_fields__},
            num_heads=1 if self.attention == "plain" else self.num_heads,
            head_dim=self.d_model if self.attention == "plain" else self.key_width,
            num_kv_heads=self.kv_heads,
            qk_norm=self.qk_norm,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            kernel=self.kernel,
            dropout=self.attention_dropout,
            lora_rank=self.lora_rank,
            lora_alpha=self.lora_alpha,
        )
        return Block(
            attention=attention(**of_self),
            cross_attention=attention(position=POSITIONS["none"](parent=None)) if cross else None,
            feed_forward=FeedForward(d_ff=self.d_ff, kind=self.feed_forward, **shared),
            norm=self.normalization,
            placement=self.norm_placement,
            dropout=self.dropout,
            parent=None,
        )

    @property
    def added_rms(self) -> float:
        """The root mean square of positions added to embeddings; 0: as their tables are drawn."""
        return 0.0

    @property
    def running(self) -> dict[str, Any]:
        """What `run_blocks` is to know of how the blocks are run."""
        dropping = self.dropout > 0 or self.attention_dropout > 0
        return {"dropping": dropping, "scan": self.scan_layers, "remat": self.remat}

    @property
    def normalization(self) -> functools.partial:
        """Builds a normalisation module."""
        return functools.partial(NORMS[self.norm], epsilon=self.norm_epsilon, use_bias=self.use_bias)

    def positions(self, position: str = "", causal: bool = False, **module: Any) -> Position:
        """The position encoding named so ("": the config's), for queries of the past alone if `causal`."""
        kind = POSITIONS[position or self.position]
        values = {
            "base": self.position_base,
            "max_length": self.max_length,
            "head_dim": self.key_width,
            "scaling": self.position_scaling,
            "scaling_factor": self.position_factor,
            "causal": causal,
            "rms": self.added_rms,
        }
        if self.position_distance:
            values["max_distance"] = self.position_distance
        return kind(
            **{key: value for key, value in values.items() if key in kind.__dataclass_fields__}, **module
        )


def check_rms(embedding_rms: float, position_rms: float, position: str) -> None:
    """Refuses a root mean square that embeddings or positions cannot have."""
    for key, rms in (("embedding_rms", embedding_rms), ("position_rms", position_rms)):
        if not 0 <= rms < float("inf"):
            raise UserError(f"{key}: {rms}; expected a root mean square, or 0 for that of the tables")
    if position_rms and position not in ADDED:
        expected = " or ".join(map(repr, ADDED))
        raise UserError(f"position_rms: {position_rms} with position {position!r}; expected 0, or {expected}")
