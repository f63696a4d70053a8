"""The config of a decoder: each key with its bound, the condition of its effect, its default and its meaning.

Other models of blocks have subclasses of `StackConfig`, and of `TextConfig` if they read tokens."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from transformer.conditions import FieldOf, only, unless
from transformer.config import (
    Bound,
    Nonnegative,
    NonnegativeFloat,
    OneOf,
    Positive,
    PositiveFloat,
    PositiveFraction,
    Rate,
    without_effect,
)
from transformer.errors import UserError
from transformer.layers.attention.kernels import KERNELS
from transformer.layers.attention.patterns import PATTERNS
from transformer.layers.attention.positions import POSITIONS, Position
from transformer.layers.attention.positions.rope import SCALINGS
from transformer.layers.block import BEFORE
from transformer.layers.embedding import Embedding
from transformer.layers.feed_forward import FEED_FORWARDS, num_kernels
from transformer.layers.mixers import MIXERS, Attention
from transformer.layers.normalization import NORMS
from transformer.layers.remat import REMAT
from transformer.layers.stack import Stack
from transformer.models import stack_builder
from transformer.models.model_config import ExpertKeys, of_mixer
from transformer.models.stack_checks import CHECKS

OF_ALL_LAYERS = (
    *("d_model", "num_layers", "layers", "layer_kinds", "scan_layers", "skips", "remat", "dtype"),
    *("max_length", "share_position", "norm", "norm_placement", "norm_epsilon", "use_bias"),
    *("attention_bias", "embedding_dropout", "parametrization", "base_width", "base_head_dim"),
    *("base_layers", "depth_exponent", "lora_rank", "lora_alpha", "lora_layers"),
    *("qk_norm_joint", "parallel_norms"),
)
"""Keys of a stack that `layer_kinds` may not override."""

of_position = functools.partial(FieldOf, "position", POSITIONS)


@dataclass(frozen=True)
class StackConfig(ExpertKeys):
    """The config of a stack of blocks."""

    checks: ClassVar = CHECKS
    own: ClassVar[tuple[str, ...]] = (
        *("embedding_dropout", "attention_dropout", "dropout", "dtype", "kernel", "scan_layers", "remat"),
        *("lora_rank", "lora_alpha", "lora_layers"),
    )
    harmless: ClassVar[tuple[str, ...]] = (
        *("num_kv_heads", "head_dim", "num_encoder_layers", "max_length", "vocab_multiple"),  # seen in shapes
        *("value_dim", "num_key_heads", "conv_width"),
        *("capacity_factor", "base_layers", "depth_exponent"),  # of training
    )
    changing: ClassVar[tuple[str, ...]] = (  # attention to fewer tokens, and to longer texts
        *("pattern", "pattern_size", "pattern_extra", "pattern_draws"),
        *("position_base", "position_scaling", "position_factor", "position_original_length"),
    )

    d_model: Positive = 256  # width of the residual stream
    num_layers: Annotated[int, Bound("from 1 to 10,000", 1, 10_000)] = 4  # number of blocks
    num_heads: Positive = 4  # query heads
    # key/value heads (grouped-query attention); 0: as many as num_heads
    num_kv_heads: Annotated[Nonnegative, of_mixer("num_kv_heads")] = 0
    head_dim: Nonnegative = 0  # width of a head; 0: d_model / num_heads
    d_ff: Annotated[Positive, unless("feed_forward", "none")] = 1024  # hidden width of the feed-forward
    layers: tuple[str, ...] = ()  # kinds of layers, of layer_kinds, repeated over the depth; (): one kind
    # keys that each kind overrides: {"full": {"pattern": "full", "position": "none"}}
    layer_kinds: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    feed_forward: Annotated[str, OneOf(FEED_FORWARDS)] = "gelu"  # swiglu, geglu: gated; none: left out
    norm: Annotated[str, OneOf(NORMS)] = "rms"  # LayerNorm, RMSNorm, with a scale of 1 + w, or none
    # pre; post: Vaswani et al. 2017; output: of what sublayers return (OLMo 2); sandwich: pre and output
    norm_placement: Annotated[Literal["pre", "post", "sandwich", "output"], unless("norm", "none")] = "pre"
    # attention and feed-forward side by side, of the same normalised input (GPT-J, PaLM)
    parallel_sublayers: Annotated[bool, unless("feed_forward", "none")] = False
    # with a norm of their own each (GPT-NeoX)
    parallel_norms: Annotated[bool, only("parallel_sublayers"), only("norm_placement", *BEFORE)] = False
    # pre-norm of attention; false behind a norm of the embeddings (ModernBERT)
    attention_norm: Annotated[bool, unless("norm", "none")] = True
    norm_epsilon: Annotated[PositiveFloat, unless("norm", "none")] = 1e-6  # epsilon added to the variance
    mixer: Annotated[str, OneOf(MIXERS)] = "multi_head"  # latent: MLA; plain: no weights; others: recurrent
    latent_dim: Annotated[Nonnegative, of_mixer("latent_dim")] = 0  # MLA latent width; 0: 2 head_dim
    # factor of attention scores; 0: 1 / sqrt(head_dim); T5: 1
    attention_scale: Annotated[NonnegativeFloat, of_mixer("attention_scale")] = 0.0
    qk_norm: Annotated[bool, of_mixer("qk_norm")] = False  # RMSNorm of queries and keys
    qk_norm_epsilon: Annotated[PositiveFloat, of_mixer("qk_norm"), only("qk_norm")] = 1e-6  # its epsilon
    qk_norm_joint: Annotated[bool, of_mixer("head_norm"), only("qk_norm")] = False  # over all heads (OLMo 2)
    # cap c of attention scores, c tanh(score / c); 0: none
    soft_cap: Annotated[NonnegativeFloat, of_mixer("soft_cap")] = 0.0
    sinks: Annotated[bool, of_mixer("sinks")] = False  # a learned logit per head for attending to nothing
    pattern: Annotated[str, OneOf(PATTERNS), of_mixer("pattern")] = "full"  # sparse attention pattern
    # window size, stride or block size, in tokens
    pattern_size: Annotated[Positive, unless("pattern", "full")] = 256
    # window: dilation; fixed: summary keys; global, blocks: such, random ones
    pattern_extra: Annotated[Nonnegative, unless("pattern", "full")] = 1
    # random blocks: the same for all heads and layers, or others for each key/value head of each layer
    pattern_draws: Annotated[Literal["one", "each"], only("pattern", "blocks")] = "one"
    position: Annotated[str, OneOf(POSITIONS)] = "rope"  # position encoding
    # base of rope and sinusoidal positions: longest wavelength / 2 pi
    position_base: Annotated[PositiveFloat, of_position("base", strict=False)] = 10000.0
    position_scaling: Annotated[str, OneOf(SCALINGS), of_position("scaling")] = "none"  # for long texts
    position_factor: float = 1.0  # context extension factor; 1 without scaling
    # trained length of yarn, yarn_exact and llama3; 0: max_length / factor
    position_original_length: Annotated[
        Nonnegative, of_position("original_length"), only("position_scaling", "yarn", "yarn_exact", "llama3")
    ] = 0
    # largest distance that t5 and shaw distinguish; 0: 128 and 16
    position_distance: Annotated[Nonnegative, of_position("max_distance")] = 0
    position_buckets: Annotated[Nonnegative, of_position("num_buckets")] = 0  # those of t5; 0: 32
    share_position: bool = False  # one table of t5 for all layers of a stack (also shaw, transformer_xl)
    # fraction of a head's dimensions that rope rotates
    position_fraction: Annotated[PositiveFraction, of_position("fraction")] = 1.0
    # rows of the learned table before that of the first token (RoBERTa: 2)
    position_offset: Annotated[Nonnegative, of_position("offset")] = 0
    max_length: Positive = 2048  # longest sequence, prompt and completion together
    use_bias: bool = False  # biases in projections, feed-forward and norms
    attention_bias: Annotated[bool, only("use_bias")] = True  # biases in the attention projections too
    # biases in the projections to queries, keys and values alone (Qwen2)
    qkv_bias: Annotated[
        bool,
        of_mixer("qkv_bias"),
        unless("attention_biases", True, reason="with use_bias and attention_bias, which have them"),
    ] = False
    embedding_dropout: Rate = 0.0  # dropout rate of embeddings plus positions
    attention_dropout: Annotated[Rate, of_mixer("dropout")] = 0.0  # dropout rate of the attention weights
    dropout: Rate = 0.0  # dropout rate of each sublayer's output
    dtype: Literal["float32", "bfloat16"] = "float32"  # type of the computation; parameters are float32
    kernel: Annotated[str, OneOf(KERNELS, "auto")] = "auto"  # of attention, but in decoding; auto: fastest
    skips: bool = False  # U-shaped skips: the upper half of the layers also reads the outputs of the lower
    scan_layers: bool = False  # scan over layers: compiles faster, runs slower on CPU
    remat: Annotated[str, OneOf(REMAT)] = "none"  # rematerialisation: what the backward pass recomputes
    # mup: initial values and learning rates are scaled so that those tuned at base_width stay the best
    parametrization: Literal["standard", "mup"] = "standard"
    # mup: the d_model at which nothing is scaled; d_ff grows in proportion
    base_width: Annotated[Nonnegative, only("parametrization", "mup")] = 0
    # mup: head_dim at base_width; 0: the same, and heads grow in number
    base_head_dim: Annotated[Nonnegative, only("parametrization", "mup")] = 0
    # mup: the num_layers at which nothing is scaled; 0: no depth changes it
    base_layers: Annotated[Nonnegative, only("parametrization", "mup")] = 0
    # mup: power of base_layers / num_layers that scales a block's output; 1: CompleteP; 0.5: depth-muP
    depth_exponent: Annotated[float, Bound("a power in [0.5, 1]", 0.5, 1.0)] = 1.0
    lora_rank: Nonnegative = 0  # LoRA rank of the linear layers that lora_layers names; 0: no LoRA
    lora_alpha: Annotated[float, only("lora_rank")] = 16.0  # its term is multiplied by lora_alpha / lora_rank
    # regular expression for the paths of a block's linear layers: attention/query, feed_forward/up
    lora_layers: Annotated[str, only("lora_rank")] = "/(query|value)$"

    def __post_init__(self) -> None:
        super().__post_init__()
        stack_builder.check_mixer(self)

    @functools.cached_property
    def kinds(self) -> dict[str, "StackConfig"]:
        """Kind of layers -> config of a stack of only this kind; {"": self} without `layers`."""
        if not self.layers:
            return {"": self}
        from transformer.models.transforms.layer_kinds import kinds

        return kinds(self, keys_of_one_layer())

    def settled(self) -> dict[str, Any]:
        """See `ModelConfig`: the trained lengths of positions that are whole numbers."""
        from transformer.models.transforms.layer_kinds import settled

        return settled(self)

    def function(self) -> dict[str, Any]:
        """See `ModelConfig`: all keys of each kind of layers, the trained length of positions also where it
        follows from `max_length`, and the scale of adapters."""
        from transformer.models.transforms.layer_kinds import with_kinds

        alpha = {"lora_alpha": self.lora_alpha} if self.lora_rank else {}
        return with_kinds(super().function(), self, keys_of_one_layer()) | alpha

    @classmethod
    def inherited(cls, theirs: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
        """See `ModelConfig`: adapters are taken with their scale."""
        adapted = theirs.get("lora_rank") and here.get("lora_rank")
        return super().inherited(theirs, here) | ({"lora_alpha": theirs["lora_alpha"]} if adapted else {})

    def idle(self) -> dict[str, str]:
        """See `Bounded`: keys that no kind of layers reads, and a rank of adapters that no layer has."""
        first, *rest = (without_effect(kind) for kind in self.kinds.values())
        reasons = {key: why for key, why in first.items() if all(key in keys for keys in rest)}
        if self.lora_rank:
            from transformer.models.transforms.lora import unmatched

            reasons |= unmatched(self)
        return reasons

    @property
    def key_width(self) -> int:
        """The width k of a head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def attention_biases(self) -> bool:
        """Whether all projections of attention have biases."""
        return self.use_bias and self.attention_bias

    @property
    def has_attention(self) -> bool:
        """Whether any layer has attention, not only recurrence."""
        names = self.layers[: self.num_layers] or ("",)
        return any(issubclass(MIXERS[self.kinds[name].mixer], Attention) for name in names)

    @property
    def expert_share(self) -> float:
        """The share of the parameters of all experts that a token is multiplied with; 1 without experts."""
        kinds = [kind for kind in map(self.kinds.get, self.layers or ("",)) if kind and kind.num_experts]
        total = sum(kind.num_experts * kind.d_ff * num_kernels(kind.feed_forward) for kind in kinds)
        active = sum(kind.experts_per_token * kind.d_ff * num_kernels(kind.feed_forward) for kind in kinds)
        return active / total if total else 1.0

    @property
    def growth(self) -> dict[str, float]:
        """Logical axis -> its size over that at `base_width` (see `transformer.models.transforms.mup`)."""
        from transformer.models.transforms.mup import growth

        return growth(self)

    @property
    def depth(self) -> float:
        """The number of blocks over that at which nothing is scaled."""
        return self.num_layers / self.base_layers if self.base_layers else 1.0

    def windowed(self, size: int) -> Any:
        """With attention to at most `size` tokens (see `transformer.models.transforms.windowed`)."""
        from transformer.models.transforms.windowed import windowed

        return windowed(self, size)

    def stack(self, num_layers: int = 0, *, cross: bool = False, causal: bool = False) -> Stack:
        """The stack of `num_layers` blocks (0: the config's), with cross-attention to another sequence if
        `cross`, and only to earlier positions if `causal`."""
        return stack_builder.make_stack(self, num_layers or self.num_layers, cross, causal)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """All stacks of the model."""
        return (self.stack(),)

    @property
    def normalization(self) -> functools.partial:
        """Builds a normalisation module."""
        return functools.partial(NORMS[self.norm], epsilon=self.norm_epsilon, use_bias=self.use_bias)

    def positions(self, causal: bool = False, **module: Any) -> Position:
        """The position encoding, for causal attention if `causal`."""
        return stack_builder.make_position(self, causal, **module)

    added_rms: ClassVar[float] = 0.0
    """The initial root mean square of added positions; 0: the scale of their table."""


def keys_of_one_layer() -> list[str]:
    """The keys that `layer_kinds` may override."""
    return [field.name for field in dataclasses.fields(StackConfig) if field.name not in OF_ALL_LAYERS]


@dataclass(frozen=True)
class TextConfig(StackConfig):
    """The config of a stack of blocks over embedded tokens."""

    scale_embeddings: bool = False  # multiply embeddings by sqrt(d_model) (Vaswani et al. 2017)
    embedding_rms: NonnegativeFloat = 0.0  # initial RMS of embeddings; 0: 0.02, with scale_embeddings 1
    # initial RMS of added positions; 0: embedding_rms
    position_rms: Annotated[NonnegativeFloat, of_position("rms")] = 0.0
    vocab_size: Nonnegative = 0  # tokens of the vocabulary, those of the tokenizer or more; 0: as many
    vocab_multiple: Positive = 128  # pad the vocabulary to a multiple, for the hardware and the mesh

    def entries(self, tokens: int) -> int:
        """The size of the vocabulary with a tokenizer of that many tokens.

        Raises:
          UserError: `vocab_size` is smaller.
        """
        if 0 < self.vocab_size < tokens:
            have = f"the tokenizer has {tokens:,} tokens"
            raise UserError(f"config.model.vocab_size: {self.vocab_size:,}; {have}, expected as many or more")
        return self.vocab_size or tokens

    def embedding(self, entries: int, **options: Any) -> Embedding:
        """A table of that many vectors; `options` are further fields of `Embedding`."""
        if self.parametrization != "standard":
            from transformer.models.transforms.mup import logit_scale

            options["logit_scale"] = logit_scale(self)
        options = {"multiple": self.vocab_multiple, "scale": self.scale_embeddings} | options
        return Embedding(entries, self.d_model, dtype=self.dtype, rms=self.embedding_rms, **options)

    @property
    def added_rms(self) -> float:  # type: ignore[override]
        """`position_rms`, or if it is 0 `embedding_rms`."""
        return self.position_rms or self.embedding_rms


@dataclass(frozen=True)
class DecoderKeys(TextConfig):
    """The keys of a decoder."""

    own: ClassVar[tuple[str, ...]] = (*TextConfig.own, "logits_dtype")

    tie_embeddings: bool = True  # one matrix for the embedding and the output
    logit_soft_cap: NonnegativeFloat = 0.0  # cap c of the output's logits, c tanh(logit / c); 0: none
    # type in which logits are stored, with dtype=bfloat16; losses are computed in float32
    logits_dtype: Annotated[Literal["float32", "bfloat16"], only("dtype", "bfloat16")] = "float32"
    scale_logits: bool = False  # divide what the logits are computed of by sqrt(d_model), as T5 does
    output_bias: bool = False  # add a learned bias of each token to the logits, as Marian does
    value_embeddings: tuple[int, ...] = ()  # layers that add a token's embedding to its values; -1: last
