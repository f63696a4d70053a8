"""Kinds of attention, by the name a config gives: each one file; `steps` leads up to them from the ground."""

from transformer.layers.attention.latent import LatentAttention
from transformer.layers.attention.multi_head import Attention
from transformer.layers.attention.plain import PlainAttention

ATTENTIONS: dict[str, type[Attention]] = {
    "multi_head": Attention,
    "latent": LatentAttention,
    "plain": PlainAttention,
}

__all__ = ["ATTENTIONS", "Attention", "LatentAttention", "PlainAttention"]
