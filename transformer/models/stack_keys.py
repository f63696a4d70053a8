"""Which keys of a `StackConfig` belong to some mixers or positions only, or to all layers together."""

from collections.abc import Mapping
from typing import Any

from transformer.layers.mixers import MIXERS
from transformer.layers.positions import POSITIONS
from transformer.models.width import BASE

OPTIONAL = {
    "num_kv_heads": ("mixer", "num_kv_heads"),
    "qk_norm": ("mixer", "qk_norm"),
    "latent_dim": ("mixer", "latent_dim"),
    "soft_cap": ("mixer", "soft_cap"),
    "sinks": ("mixer", "sinks"),
    "pattern": ("mixer", "pattern"),
    "attention_dropout": ("mixer", "dropout"),
    "position_scaling": ("position", "scaling"),
    "position_original_length": ("position", "original_length"),
    "position_distance": ("position", "max_distance"),
    "position_fraction": ("position", "fraction"),
}
"""Optional keys, by default off, of some mixers or position encodings -> (family, name of their field)."""

FAMILIES: dict[str, Mapping[str, Any]] = {"mixer": MIXERS, "position": POSITIONS}

OF_ALL_LAYERS = (
    *("d_model", "num_layers", "layers", "layer_kinds", "scan_layers", "skips", "remat", "dtype"),
    *("max_length", "norm", "norm_placement", "norm_epsilon", "use_bias", "attention_bias"),
    *("embedding_dropout", "parametrization", *BASE, "depth_exponent"),
)
"""Keys that `layer_kinds` may not override."""
