"""The config of a stack of blocks, which all Transformers have."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from transformer.config import (
    Bound,
    Nonnegative,
    NonnegativeFloat,
    OneOf,
    Positive,
    PositiveFloat,
    PositiveFraction,
    Rate,
    from_values,
)
from transformer.errors import UserError, suggest
from transformer.layers.attention.kernels import KERNELS
from transformer.layers.attention.patterns import PATTERNS, Blocks, Pattern
from transformer.layers.attention.positions import POSITIONS, Position
from transformer.layers.attention.positions.rope import SCALINGS
from transformer.layers.block import Block
from transformer.layers.feed_forward import FEED_FORWARDS, num_kernels
from transformer.layers.mixers import MIXERS, Attention, Mixer
from transformer.layers.normalization import HEAD_NORMS, NORMS, RMSNorm
from transformer.layers.stack import REMAT, Stack
from transformer.layers.variants.experts import Experts
from transformer.layers.variants.skips import UShaped
from transformer.models.config.stack_keys import (
    ASKED,
    FAMILIES,
    HARMLESS,
    OF_ALL_LAYERS,
    OPTIONAL,
    OWN,
    check_layers,
    check_learned_positions,
    idle_in_layer,
    lacks,
    odd,
    settled,
    trained_length,
    who_has,
    who_has_heads_of_width,
)
from transformer.models.config.width import BASE, WidthConfig


@dataclass(frozen=True)
class StackConfig(WidthConfig):
    """The config of a stack of blocks."""

    own, harmless, asked = OWN, HARMLESS, ASKED

    d_model: Positive = 256  # width of the residual stream
    num_layers: Annotated[int, Bound("from 1 to 10,000", 1, 10_000)] = 4  # number of blocks
    num_heads: Positive = 4  # query heads
    num_kv_heads: Nonnegative = 0  # key/value heads (grouped-query attention); 0: as many as num_heads
    head_dim: Nonnegative = 0  # width of a head; 0: d_model / num_heads
    d_ff: Positive = 1024  # hidden width of the feed-forward
    layers: tuple[str, ...] = ()  # kinds of layers, of layer_kinds, repeated over the depth; (): one kind
    # keys that each kind overrides: {"full": {"pattern": "full", "position": "none"}}
    layer_kinds: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    feed_forward: Annotated[str, OneOf(FEED_FORWARDS)] = "gelu"  # swiglu, geglu: gated; none: left out
    num_experts: Nonnegative = 0  # feed-forwards in a mixture of experts; 0: one, for all tokens
    experts_per_token: Positive = 2  # experts that compute a token, those with the largest probabilities
    capacity_factor: NonnegativeFloat = 0.0  # an expert's capacity in training: 1 is its mean load; 0: none
    norm: Annotated[str, OneOf(NORMS)] = "rms"  # LayerNorm, RMSNorm, with a scale of 1 + w, or none
    norm_placement: Literal["pre", "post", "sandwich"] = "pre"  # post: Vaswani et al. 2017; sandwich: both
    # attention and feed-forward side by side, of the same normalised input (GPT-J, PaLM)
    parallel_sublayers: bool = False
    attention_norm: bool = True  # pre-norm of attention; false behind a norm of the embeddings (ModernBERT)
    norm_epsilon: PositiveFloat = 1e-6  # epsilon added to the variance
    mixer: Annotated[str, OneOf(MIXERS)] = "multi_head"  # latent: MLA; plain: no weights; linear: no softmax
    latent_dim: Nonnegative = 0  # MLA latent width, besides head_dim/2 rotary dimensions; 0: 2 head_dim
    attention_scale: NonnegativeFloat = 0.0  # factor of attention scores; 0: 1 / sqrt(head_dim); T5: 1
    qk_norm: bool = False  # RMSNorm of queries and keys
    qk_norm_epsilon: PositiveFloat = 1e-6  # epsilon of qk_norm
    soft_cap: NonnegativeFloat = 0.0  # cap c of attention scores, c tanh(score / c); 0: none
    sinks: bool = False  # attention sinks: a learned logit per head for attending to nothing
    pattern: Annotated[str, OneOf(PATTERNS)] = "full"  # sparse attention pattern
    pattern_size: Positive = 256  # window size, stride or block size, in tokens
    pattern_extra: Nonnegative = 1  # window: dilation; fixed: summary keys; global, blocks: such, random ones
    # random blocks: the same for all heads and layers, or others for each key/value head of each layer
    pattern_draws: Literal["one", "each"] = "one"
    position: Annotated[str, OneOf(POSITIONS)] = "rope"  # position encoding
    position_base: PositiveFloat = 10000.0  # base of rope and sinusoidal positions: longest wavelength / 2 pi
    position_scaling: Annotated[str, OneOf(SCALINGS)] = "none"  # context extension of rope
    position_factor: float = 1.0  # context extension factor; 1 without scaling
    position_original_length: Nonnegative = 0  # trained length of yarn and llama3; 0: max_length / factor
    position_distance: Nonnegative = 0  # largest distance that t5 and shaw distinguish; 0: 128 and 16
    position_buckets: Nonnegative = 0  # buckets of distances of t5; 0: 32
    share_position: bool = False  # one table of t5 for all layers of a stack (also shaw, transformer_xl)
    position_fraction: PositiveFraction = 1.0  # fraction of a head's dimensions that rope rotates
    position_offset: Nonnegative = 0  # rows of the learned table before that of the first token (RoBERTa: 2)
    max_length: Positive = 2048  # longest sequence, prompt and completion together
    use_bias: bool = False  # biases in projections, feed-forward and norms
    attention_bias: bool = True  # with use_bias, biases in the attention projections too
    qkv_bias: bool = False  # biases in the projections to queries, keys and values alone (Qwen2)
    embedding_dropout: Rate = 0.0  # dropout rate of embeddings plus positions
    attention_dropout: Rate = 0.0  # dropout rate of the attention weights
    dropout: Rate = 0.0  # dropout rate of each sublayer's output
    dtype: Literal["float32", "bfloat16"] = "float32"  # type of the computation; parameters are float32
    kernel: Annotated[str, OneOf(KERNELS, "auto")] = "auto"  # of attention, but in decoding; auto: fastest
    skips: bool = False  # U-shaped skips: the upper half of the layers also reads the outputs of the lower
    scan_layers: bool = False  # scan over layers: compiles faster, runs slower on CPU
    remat: Annotated[str, OneOf(REMAT)] = "none"  # rematerialisation: what the backward pass recomputes

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim == 0 and self.d_model % self.num_heads:
            why = f"not divisible by num_heads {self.num_heads}; set head_dim > 0"
            raise UserError(f"d_model: {self.d_model} is {why}")
        if self.num_heads % (self.num_kv_heads or 1):
            raise UserError(f"num_kv_heads: {self.num_kv_heads} does not divide num_heads {self.num_heads}")
        if self.position_factor < 1 or (self.position_factor > 1) != (self.position_scaling != "none"):
            given = f"position_factor: {self.position_factor} with position_scaling {self.position_scaling!r}"
            raise UserError(f"{given}; expected 1 without scaling, and more than 1 with it")
        if 0 < self.num_experts < self.experts_per_token:
            raise UserError(f"experts_per_token: {self.experts_per_token}; num_experts is {self.num_experts}")
        if self.norm_placement == "post" and not self.attention_norm:
            raise UserError("attention_norm: False with norm_placement 'post'; expected 'pre' or 'sandwich'")
        for key in OPTIONAL:
            if lacks(self, key) and getattr(self, key) != self.__dataclass_fields__[key].default:
                raise UserError(who_has(self, key))
        if self.layers or self.layer_kinds:
            check_layers(self)
        if self.parametrization != "standard" or any(getattr(self, key) for key in BASE):
            self.check_widths()
        mixer, position = MIXERS[self.mixer], POSITIONS[self.position]
        if position.of_head_width and not getattr(mixer, "heads_of_width", True):
            raise UserError(who_has_heads_of_width(self))
        check_learned_positions(self, [POSITIONS[kind.position] for kind in self.kinds.values()])
        width = self._mixer(causal=False, output_scale=1.0).rotary_width
        if position.has("rotate") and round(width * self.position_fraction, 6) % 2:
            raise UserError(odd(self, width))

    @functools.cached_property
    def kinds(self) -> dict[str, "StackConfig"]:
        """Kind of layers -> config of a stack of only this kind; {"": self} without `layers`."""
        return {name: self._kind(name) for name in dict.fromkeys(self.layers)} or {"": self}

    def _kind(self, name: str) -> "StackConfig":
        given, path = self.layer_kinds[name], f"layer_kinds.{name}"
        if not isinstance(given, Mapping):
            raise UserError(f"{path}: {given!r}; expected a group of keys")
        for key in given:
            if key not in (per_layer := self._per_layer()):
                raise UserError(f"{path}.{key}: not a key of one layer; {suggest(key, per_layer)}")
        fields = {field.name for field in dataclasses.fields(self)} - {"value_embeddings"}
        own = {name: getattr(self, name) for name in fields}
        values = own | {"layers": (), "layer_kinds": {}, "share_position": False} | dict(given)
        # A kind does not inherit keys that its mixer or position encoding does not have.
        for key, (family, field) in OPTIONAL.items():
            member = FAMILIES[family].get(values[family])
            if key not in given and member is not None and field not in member.__dataclass_fields__:
                values[key] = self.__dataclass_fields__[key].default
        if values["position_scaling"] == "none" and "position_factor" not in given:
            values["position_factor"] = 1.0
        return from_values(type(self), values, path)

    @staticmethod
    def _per_layer() -> list[str]:
        """The keys that `layer_kinds` may override."""
        return [f.name for f in dataclasses.fields(StackConfig) if f.name not in OF_ALL_LAYERS]

    def function(self) -> dict[str, Any]:
        """See `ModelConfig`: all keys of each kind of layers, and the trained length of positions also where
        it follows from `max_length`."""
        found = super().function() | trained_length(self)
        for name, kind in self.kinds.items() if found.pop("layer_kinds") else ():
            keys = {key: value for key, value in kind.function().items() if key in self._per_layer()}
            found |= {f"layer_kinds.{name}.{key}": value for key, value in keys.items()}
        return found

    def settled(self) -> dict[str, Any]:
        """See `ModelConfig`."""
        return settled(self)

    def idle(self) -> dict[str, str]:
        """See `transformer.config.idle_keys`: keys that no kind of layer reads."""
        first, *others = (kind._idle() for kind in self.kinds.values())
        return {key: why for key, why in first.items() if all(key in other for other in others)}

    def _idle(self) -> dict[str, str]:
        return idle_in_layer(self)

    def windowed(self, size: int) -> Any:
        """With attention to at most `size` tokens (see `transformer.models.transforms.windowed`)."""
        from transformer.models.transforms.windowed import windowed

        return windowed(self, size)

    @property
    def key_width(self) -> int:
        """The width k of a head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def has_attention(self) -> bool:
        """Whether any layer has attention, not only recurrence."""
        return any(issubclass(MIXERS[kind.mixer], Attention) for kind in self.kinds.values())

    @property
    def expert_share(self) -> float:
        """The share of the parameters of all experts that a token is multiplied with; 1 without experts."""
        kinds = [kind for kind in map(self.kinds.get, self.layers or ("",)) if kind and kind.num_experts]
        total = sum(kind.num_experts * kind.d_ff * num_kernels(kind.feed_forward) for kind in kinds)
        active = sum(kind.experts_per_token * kind.d_ff * num_kernels(kind.feed_forward) for kind in kinds)
        return active / total if total else 1.0

    def stack(self, num_layers: int = 0, *, cross: bool = False, causal: bool = False) -> Stack:
        """The stack of `num_layers` blocks (0: the config's), with cross-attention to another sequence if
        `cross`, and only to earlier positions if `causal`."""
        num_layers = num_layers or self.num_layers
        blocks = {name: kind._block(num_layers, cross, causal) for name, kind in self.kinds.items()}
        names = self.layers[:num_layers] or ("",)
        drops = any(kind.dropout > 0 or kind.attention_dropout > 0 for kind in self.kinds.values())
        blocks_m = tuple(blocks[name] for name in names)
        make = UShaped if self.skips else Stack
        shared = ("position",) if self.share_position else ()
        return make(blocks_m, names, num_layers, self.scan_layers, self.remat, drops, shared)

    def _block(self, num_layers: int, cross: bool, causal: bool) -> Block:
        # The n blocks of m sublayers add n m terms to the residual stream. Except with post-norm each has an
        # initial variance divided by n m, so that their sum has the scale of one term (Radford et al. 2019).
        make = FEED_FORWARDS[self.feed_forward]
        terms = num_layers * (1 + cross + (make is not None))
        scale = 1.0 if self.norm_placement == "post" else 1.0 / terms
        shared = {"use_bias": self.use_bias, "dtype": self.dtype, "output_scale": scale}
        return Block(
            mixer=self._mixer(causal=causal, output_scale=scale),
            cross_attention=self._cross_attention(causal, scale) if cross else None,
            feed_forward=make and self._feed_forward(functools.partial(make, d_ff=self.d_ff, **shared)),
            norm=self.normalization,
            placement=self.norm_placement,
            dropout=self.dropout,
            parallel=self.parallel_sublayers,
            attention_norm=self.attention_norm,
            parent=None,
        )

    def _feed_forward(self, make: functools.partial) -> Any:
        if not self.num_experts:
            return make(parent=None)
        return Experts(make, self.num_experts, self.experts_per_token, self.capacity_factor, parent=None)

    def _cross_attention(self, causal: bool, output_scale: float) -> Any:
        kind = self.mixer if issubclass(MIXERS[self.mixer], Attention) else "multi_head"
        mixer = self._mixer(causal=causal, output_scale=output_scale, kind=kind)
        return mixer.clone(position=POSITIONS["none"](parent=None), pattern=None, name=None, parent=None)

    def _mixer(self, *, causal: bool, output_scale: float, kind: str = "") -> Mixer:
        """The mixer, built from those keys that are its fields."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values |= {
            "head_dim": self.key_width,
            "num_kv_heads": self.num_kv_heads or self.num_heads,
            "dropout": self.attention_dropout,
            "use_bias": self.use_bias and self.attention_bias,
            "pattern": None if self.pattern == "full" else self._pattern(),
            "position": self.positions(causal, parent=None),
            "head_norm": self.head_normalization,
            "output_scale": output_scale,
            "score_scale": 1.0 if self.parametrization == "standard" else self.score_scale,
        }
        return _build(MIXERS[kind or self.mixer], values, parent=None, name="attention")

    def _pattern(self) -> Pattern:
        make: Any = PATTERNS[self.pattern]
        try:
            pattern = make(self.pattern_size, self.pattern_extra)
            each = isinstance(pattern, Blocks) and self.pattern_draws == "each"
            return dataclasses.replace(pattern, each=True) if each else pattern
        except UserError as error:
            sizes = f"pattern_size: {self.pattern_size} and pattern_extra: {self.pattern_extra}"
            raise UserError(f"{sizes} with pattern {self.pattern!r}: {error}") from error

    @property
    def added_rms(self) -> float:
        """The initial root mean square of added positions; 0: the scale of their table."""
        return 0.0

    @property
    def normalization(self) -> functools.partial:
        """Builds a normalisation module."""
        return functools.partial(NORMS[self.norm], epsilon=self.norm_epsilon, use_bias=self.use_bias)

    @property
    def head_normalization(self) -> functools.partial:
        """Builds the normalisation of queries and keys."""
        return functools.partial(HEAD_NORMS.get(self.norm, RMSNorm), epsilon=self.qk_norm_epsilon)

    def positions(self, causal: bool = False, **module: Any) -> Position:
        """The position encoding, for causal attention if `causal`."""
        values = {
            "base": self.position_base,
            "max_length": self.max_length,
            "head_dim": self.key_width,
            "scaling": self.position_scaling,
            "scaling_factor": self.position_factor,
            "original_length": self.position_original_length,
            "fraction": self.position_fraction,
            "offset": self.position_offset,
            "causal": causal,
            "rms": self.added_rms,
        }
        if self.position_distance:
            values["max_distance"] = self.position_distance
        if self.position_buckets:
            values["num_buckets"] = self.position_buckets
        return _build(POSITIONS[self.position], values, **module)


def _build(kind: Any, values: Mapping[str, Any], **module: Any) -> Any:
    """A module built from those values that are its fields."""
    return kind(**{key: value for key, value in values.items() if key in kind.__dataclass_fields__}, **module)
