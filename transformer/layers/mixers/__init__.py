"""Mixers, by the name that `model.mixer` gives, each in one file."""

from transformer.layers.attention.attention import Attention, MultiHeadAttention
from transformer.layers.attention.latent import LatentAttention
from transformer.layers.mixers.base import Mixer
from transformer.layers.mixers.linear_attention import LinearAttention
from transformer.layers.mixers.plain import PlainAttention

MIXERS: dict[str, type[Mixer]] = {
    "multi_head": MultiHeadAttention,
    "latent": LatentAttention,
    "plain": PlainAttention,
    "linear": LinearAttention,
}

__all__ = [
    "MIXERS",
    "Attention",
    "LatentAttention",
    "LinearAttention",
    "Mixer",
    "MultiHeadAttention",
    "PlainAttention",
]
