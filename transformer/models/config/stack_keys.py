"""Which keys of a `StackConfig` belong to some mixers or positions only, or to all layers together."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformer.errors import UserError, suggest
from transformer.layers.attention.positions import POSITIONS, Position
from transformer.layers.mixers import MIXERS
from transformer.models.config.width import BASE

OPTIONAL = {
    "num_kv_heads": ("mixer", "num_kv_heads"),
    "qk_norm": ("mixer", "qk_norm"),
    "qk_norm_epsilon": ("mixer", "qk_norm"),
    "qkv_bias": ("mixer", "qkv_bias"),
    "attention_scale": ("mixer", "attention_scale"),
    "latent_dim": ("mixer", "latent_dim"),
    "soft_cap": ("mixer", "soft_cap"),
    "sinks": ("mixer", "sinks"),
    "pattern": ("mixer", "pattern"),
    "attention_dropout": ("mixer", "dropout"),
    "position_scaling": ("position", "scaling"),
    "position_original_length": ("position", "original_length"),
    "position_distance": ("position", "max_distance"),
    "position_buckets": ("position", "num_buckets"),
    "position_fraction": ("position", "fraction"),
    "position_offset": ("position", "offset"),
}
"""Optional keys, by default off, of some mixers or position encodings -> (family, name of their field)."""

FAMILIES: dict[str, Mapping[str, Any]] = {"mixer": MIXERS, "position": POSITIONS}

OF_ALL_LAYERS = (
    *("d_model", "num_layers", "layers", "layer_kinds", "scan_layers", "skips", "remat", "dtype"),
    *("max_length", "share_position", "norm", "norm_placement", "norm_epsilon", "use_bias", "attention_bias"),
    *("embedding_dropout", "parametrization", *BASE, "depth_exponent"),
)
"""Keys that `layer_kinds` may not override."""

OWN: tuple[str, ...] = (
    *("embedding_dropout", "attention_dropout", "dropout"),
    *("dtype", "kernel", "scan_layers", "remat"),
)
"""See `ModelConfig`."""

HARMLESS: tuple[str, ...] = (
    *("num_kv_heads", "head_dim", "num_encoder_layers", "max_length", "vocab_multiple"),  # seen in shapes
    *("capacity_factor", "base_layers", "depth_exponent"),  # of training
)
"""See `ModelConfig`."""

ASKED: tuple[str, ...] = (
    *("pattern", "pattern_size", "pattern_extra", "pattern_draws"),
    *("position_base", "position_scaling", "position_factor", "position_original_length"),
)
"""See `ModelConfig`: attention to fewer tokens, and to longer texts."""

OF_LENGTH = ("yarn", "llama3")
"""Scalings of positions that depend on the trained length."""


def lacks(config: Any, key: str) -> bool:
    """Whether the mixer or position encoding of a `StackConfig` does not have this key of `OPTIONAL`."""
    family, field = OPTIONAL[key]
    return field not in FAMILIES[family][getattr(config, family)].__dataclass_fields__


def who_has(config: Any, key: str) -> str:
    """That the mixer or position encoding does not have this key, and which ones have it."""
    family, field = OPTIONAL[key]
    having = [name for name, kind in FAMILIES[family].items() if field in kind.__dataclass_fields__]
    value = f"{key}: {getattr(config, key)!r} with {family} {getattr(config, family)!r}"
    return f"{value}; only {', '.join(map(repr, having))} has it"


def who_has_heads_of_width(config: Any) -> str:
    """That the position encoding needs heads of the width of keys, and which mixers have them."""
    having = [name for name, kind in MIXERS.items() if getattr(kind, "heads_of_width", False)]
    only = ", ".join(map(repr, having))
    return f"position: {config.position!r} with mixer {config.mixer!r}; only {only} has it"


def check_layers(config: Any) -> None:
    """Raises `UserError` for layers of a kind that there is not, or a kind that no layer is of or that has
    impossible keys."""
    for name in config.layers:
        if name not in config.layer_kinds:
            hint = suggest(name, config.layer_kinds) if config.layer_kinds else "define it there"
            raise UserError(f"layers: {name!r} is not a kind of layer_kinds; {hint}")
    for name in config.layer_kinds:
        if name in ("attention", "cross_attention", "feed_forward"):
            raise UserError(
                f"layer_kinds.{name}: parameters of a part of a layer have this name; choose another"
            )
        if name not in config.layers:
            raise UserError(f"layer_kinds.{name}: no layer is of this kind; name it in layers")
    for name, kind in config.kinds.items():
        if POSITIONS[kind.position].has("embed") and kind.position != config.position:
            raise UserError(
                f"layer_kinds.{name}.position: {kind.position!r} is added to embeddings, before all "
                f"layers; set position"
            )
        for key, value in config.layer_kinds[name].items():
            if key in kind._idle():
                raise UserError(f"layer_kinds.{name}.{key}: {value!r} does nothing {kind._idle()[key]}")


def trained_length(config: Any) -> dict[str, float]:
    """The trained length of the positions of a `StackConfig`, by its key; {} if they do not depend on it."""
    length = config.position_original_length or config.max_length / config.position_factor
    whole = int(length) if length == int(length) else length
    return {"position_original_length": whole} if config.position_scaling in OF_LENGTH else {}


def settled(config: Any) -> dict[str, Any]:
    """See `ModelConfig`: the trained lengths of a `StackConfig` that are whole numbers."""

    def of(kind: Any) -> dict[str, int]:
        return {key: value for key, value in trained_length(kind).items() if isinstance(value, int)}

    kinds = {name: {**keys, **of(config.kinds[name])} for name, keys in config.layer_kinds.items()}
    return of(config) | ({"layer_kinds": kinds} if kinds else {})


def check_learned_positions(config: Any, of_layers: Sequence[type[Position]]) -> None:
    """Raises `UserError` for `attention_scale` with an encoding that scales its own scores, and for
    `share_position` without parameters that the layers, whose encodings are given, could share."""
    if config.attention_scale and POSITIONS[config.position].of_head_width:
        given = f"attention_scale: {config.attention_scale} with position {config.position!r}"
        raise UserError(f"{given}, which scales its own scores; expected 0")
    if config.share_position and not any(kind.per_layer for kind in of_layers):
        having = ", ".join(repr(name) for name, kind in POSITIONS.items() if kind.per_layer)
        given = f"share_position: true with position {config.position!r}"
        raise UserError(f"{given}; only {having} learns in each layer")


def odd(config: Any, width: int) -> str:
    """That an odd number of dimensions cannot be rotated, and which key it follows from."""
    if config.position_fraction == 1:
        return f"head_dim: {width} is odd; {config.position} rotates pairs, so it must be even"
    of_them = f"{config.position_fraction:g} of {width} dimensions is {width * config.position_fraction:g}"
    return f"position_fraction: {of_them}; {config.position!r} rotates pairs, so it must be an even number"


def idle_in_layer(config: Any) -> dict[str, str]:
    """The keys of a `StackConfig` that do nothing in layers of one kind, and why."""
    c, no_original = config, config.position_scaling not in OF_LENGTH
    no_base = "base" not in POSITIONS[c.position].__dataclass_fields__
    idle = [
        (c.pattern == "full", "pattern_size pattern_extra", "pattern 'full'"),
        (c.pattern != "blocks", "pattern_draws", f"pattern {c.pattern!r}"),
        (not c.qk_norm, "qk_norm_epsilon", "qk_norm False"),
        (c.use_bias and c.attention_bias, "qkv_bias", "use_bias and attention_bias, which have them"),
        (not c.use_bias, "attention_bias", "use_bias False"),
        (no_original, "position_original_length", f"position_scaling {c.position_scaling!r}"),
        (c.feed_forward == "none", "d_ff num_experts parallel_sublayers", "feed_forward 'none'"),
        (not c.num_experts, "experts_per_token capacity_factor", "num_experts 0"),
        (c.norm == "none", "norm_placement norm_epsilon attention_norm", "norm 'none'"),
        (no_base, "position_base", f"position {c.position!r}"),
    ]
    return {key: f"with {why}" for does_nothing, keys, why in idle if does_nothing for key in keys.split()}
