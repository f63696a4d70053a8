"""Mixers, by the name that `model.mixer` gives, each in one file."""

from transformer.layers.attention.attention import Attention, MultiHeadAttention
from transformer.layers.attention.latent import LatentAttention
from transformer.layers.mixers.base import Mixer
from transformer.layers.mixers.delta import DeltaNet
from transformer.layers.mixers.differential import DifferentialAttention
from transformer.layers.mixers.gated import GatedAttention
from transformer.layers.mixers.gated_delta import GatedDeltaNet
from transformer.layers.mixers.gated_linear import GatedLinear
from transformer.layers.mixers.kimi_delta import KimiDelta
from transformer.layers.mixers.linear_attention import LinearAttention
from transformer.layers.mixers.mamba2 import Mamba2
from transformer.layers.mixers.plain import PlainAttention
from transformer.layers.mixers.rwkv7 import RWKV7
from transformer.layers.mixers.state_mixer import StateMixer

MIXERS: dict[str, type[Mixer]] = {
    "multi_head": MultiHeadAttention,
    "gated": GatedAttention,
    "differential": DifferentialAttention,
    "latent": LatentAttention,
    "plain": PlainAttention,
    "linear": LinearAttention,
    "gated_linear": GatedLinear,
    "mamba2": Mamba2,
    "delta": DeltaNet,
    "gated_delta": GatedDeltaNet,
    "kimi_delta": KimiDelta,
    "rwkv7": RWKV7,
}

__all__ = [
    "MIXERS",
    "RWKV7",
    "Attention",
    "DeltaNet",
    "DifferentialAttention",
    "GatedAttention",
    "GatedDeltaNet",
    "GatedLinear",
    "KimiDelta",
    "LatentAttention",
    "LinearAttention",
    "Mamba2",
    "Mixer",
    "MultiHeadAttention",
    "PlainAttention",
    "StateMixer",
]
