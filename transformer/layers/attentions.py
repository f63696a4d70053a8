"""Kinds of attention, by the name a config gives."""

from transformer.layers.attention import Attention
from transformer.layers.latent_attention import LatentAttention
from transformer.layers.plain_attention import PlainAttention

ATTENTIONS: dict[str, type[Attention]] = {
    "multi_head": Attention,
    "latent": LatentAttention,
    "plain": PlainAttention,
}
