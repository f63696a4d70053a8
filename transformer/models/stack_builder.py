"""The blocks of a model, made from its config, and the combinations of keys of which there are none."""

import dataclasses
import functools
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from transformer.conditions import FieldOf
from transformer.config import marks_of
from transformer.errors import UserError
from transformer.layers.attention.patterns import PATTERNS, Blocks, Pattern
from transformer.layers.attention.positions import POSITIONS, Position
from transformer.layers.block import Block
from transformer.layers.feed_forward import FEED_FORWARDS
from transformer.layers.mixers import MIXERS, Attention, Mixer
from transformer.layers.normalization import HEAD_NORMS, RMSNorm
from transformer.layers.stack import Stack

UNROLLED = 1000
"""The most layers that are traced one by one, which takes some minutes."""


def make_stack(c: Any, num_layers: int, cross: bool, causal: bool) -> Stack:
    """The stack of a `StackConfig` with that many blocks; see `StackConfig.stack`."""
    kinds = c.kinds
    blocks = {name: make_block(kind, num_layers, cross, causal) for name, kind in kinds.items()}
    names = c.layers[:num_layers] or ("",)
    drops = any(kind.dropout > 0 or kind.attention_dropout > 0 for kind in kinds.values())
    tied = ("position",) if c.share_position else ()
    blocks_m = tuple(blocks[name] for name in names)
    stack = Stack(blocks_m, names, num_layers, c.scan_layers, c.remat, drops, tied)
    for key, name in TRANSFORMS.items():
        if vars(c).get(key):
            stack = pkgutil.resolve_name(name)(c, stack)
    return stack


TRANSFORMS = {
    "skips": "transformer.layers.variants.skips:with_skips",
    "qk_norm_joint": "transformer.layers.variants.other_norms:with_joint_norms",
    "parallel_norms": "transformer.layers.variants.other_norms:with_parallel_norms",
    "lora_rank": "transformer.models.transforms.lora:with_adapters",
    "base_head_dim": "transformer.models.transforms.mup:with_scaled_scores",
    "value_embeddings": "transformer.models.transforms.value_embeddings:with_values",
}
"""Key -> module and function, (config, stack) -> stack, imported only where the key of a config is set."""


def make_block(c: Any, num_layers: int, cross: bool, causal: bool) -> Block:
    """A block of a stack of `num_layers`."""
    # The n blocks of m sublayers add n m terms to the residual stream. Except with post-norm each has an
    # initial variance divided by n m, so that their sum has the scale of one term (Radford et al. 2019).
    make: Any = FEED_FORWARDS[c.feed_forward]
    scale = 1.0 if c.norm_placement == "post" else 1.0 / (num_layers * (1 + cross + (make is not None)))
    options = {"d_ff": c.d_ff, "use_bias": c.use_bias, "dtype": c.dtype, "output_scale": scale}
    if make and c.num_experts:
        make, options = _experts(c, functools.partial(make, **options)), {}
    return Block(
        mixer=make_mixer(c, c.mixer, causal=causal, output_scale=scale),
        cross_attention=_cross_attention(c, causal, scale) if cross else None,
        feed_forward=make and make(**options, parent=None),
        norm=c.normalization,
        placement=c.norm_placement,
        dropout=c.dropout,
        parallel=c.parallel_sublayers,
        attention_norm=c.attention_norm,
        parent=None,
    )


def _experts(c: Any, network: Callable[..., Any]) -> Callable[..., Any]:
    from transformer.layers.variants.experts import Experts

    sizes = c.num_experts, c.experts_per_token, c.capacity_factor, c.router_bias
    if c.shared_d_ff:
        from transformer.layers.variants.shared_expert import SharedExperts

        return functools.partial(SharedExperts, network, *sizes, c.shared_d_ff, c.shared_gate)
    return functools.partial(Experts, network, *sizes)


def _cross_attention(c: Any, causal: bool, output_scale: float) -> Any:
    kind = c.mixer if issubclass(MIXERS[c.mixer], Attention) else "multi_head"
    mixer = make_mixer(c, kind, causal=causal, output_scale=output_scale)
    return mixer.clone(position=POSITIONS["none"](parent=None), pattern=None, name=None, parent=None)


def make_mixer(c: Any, kind: str, *, causal: bool, output_scale: float) -> Mixer:
    """A mixer of this kind, built from those keys that are its fields."""
    values = vars(c) | {
        "head_dim": c.key_width,
        "num_kv_heads": c.num_kv_heads or c.num_heads,
        "dropout": c.attention_dropout,
        "use_bias": c.attention_biases,
        "pattern": None if c.pattern == "full" else _pattern(c),
        "position": make_position(c, causal, parent=None),
        "head_norm": functools.partial(HEAD_NORMS.get(c.norm, RMSNorm), epsilon=c.qk_norm_epsilon),
        "output_scale": output_scale,
    }
    return _build(MIXERS[kind], values, parent=None, name="attention")


def _pattern(c: Any) -> Pattern:
    make: Any = PATTERNS[c.pattern]
    try:
        pattern = make(c.pattern_size, c.pattern_extra)
        per_head = isinstance(pattern, Blocks) and c.pattern_draws == "each"
        return dataclasses.replace(pattern, per_head=True) if per_head else pattern
    except UserError as error:
        sizes = f"pattern_size: {c.pattern_size} and pattern_extra: {c.pattern_extra}"
        raise UserError(f"{sizes} with pattern {c.pattern!r}: {error}") from error


def make_position(c: Any, causal: bool, **module: Any) -> Position:
    """The position encoding, for causal attention if `causal`."""
    keys = {mark.field: key for key, mark in marks_of(c.__class__, (FieldOf,)) if mark.on == "position"}
    values = {name: getattr(c, key) for name, key in keys.items() if getattr(c, key)}  # 0: its own default
    values |= {"max_length": c.max_length, "scaling_factor": c.position_factor, "rms": c.added_rms}
    values |= {"head_dim": c.key_width, "causal": causal}
    return _build(POSITIONS[c.position], values, **module)


def _build(kind: Any, values: Mapping[str, Any], **module: Any) -> Any:
    """A module built from those values that are its fields."""
    return kind(**{key: value for key, value in values.items() if key in kind.__dataclass_fields__}, **module)


def check_mixer(c: Any) -> None:
    """Raises `UserError` for values of a `StackConfig` of which there is no mixer."""
    width = make_mixer(c, c.mixer, causal=False, output_scale=1.0).rotary_width
    if round(width * c.position_fraction, 6) % 2 and POSITIONS[c.position].has("rotate"):
        raise UserError(_odd(c, width))


def check_width(c: Any) -> None:
    """Raises `UserError` for a width that does not divide among the heads."""
    if c.head_dim == 0 and c.d_model % c.num_heads:
        why = f"not divisible by num_heads {c.num_heads}; set head_dim > 0"
        raise UserError(f"d_model: {c.d_model} is {why}")


def check_layers(c: Any, num_layers: int = 0) -> None:
    """Raises `UserError` for more layers (0: those of the config) than can be traced one by one."""
    if (number := num_layers or c.num_layers) > UNROLLED and not c.scan_layers:
        raise UserError(f"num_layers: {number}; expected at most {UNROLLED:,}, or scan_layers=True")


def _odd(c: Any, width: int) -> str:
    """That an odd number of dimensions cannot be rotated, and which key it follows from."""
    if c.position_fraction == 1:
        return f"head_dim: {width} is odd; {c.position} rotates pairs, so it must be even"
    of_them = f"{c.position_fraction:g} of {width} dimensions is {width * c.position_fraction:g}"
    return f"position_fraction: {of_them}; {c.position!r} rotates pairs, so it must be an even number"
