"""Norms in other places of a block: of all heads at once, and of each of two parallel sublayers."""

import dataclasses
import functools
from typing import Any

import jax

from transformer.layers.attention.attention import MultiHeadAttention
from transformer.layers.block import Block
from transformer.layers.normalization import RMSNorm
from transformer.layers.stack import Stack


class JointRMSNorm(RMSNorm):
    """`RMSNorm` over the last two axes together, such as all heads of queries.

    Source: OLMo Team 2025 (OLMo 2), section 3.3.2, and its released code.
    """

    def __call__(self, x_bthk: jax.Array) -> jax.Array:
        """(..., h, k) -> (..., h, k)."""
        return super().__call__(x_bthk.reshape(*x_bthk.shape[:-2], -1)).reshape(x_bthk.shape)


def with_joint_norms(c: Any, stack: Stack) -> Stack:
    """The stack whose queries and keys, where `qk_norm` normalises them, are so over all heads together.

    Source: OLMo Team 2025 (OLMo 2), section 3.3.2, and its released code.
    """
    norm = functools.partial(JointRMSNorm, epsilon=c.qk_norm_epsilon)

    def joint(mixer: Any) -> Any:
        normal = isinstance(mixer, MultiHeadAttention) and mixer.qk_norm
        return mixer.clone(head_norm=norm, parent=None) if normal else mixer

    blocks = (
        block.clone(mixer=joint(block.mixer), cross_attention=joint(block.cross_attention), parent=None)
        for block in stack.blocks
    )
    return dataclasses.replace(stack, blocks=tuple(blocks))


class ParallelNorms(Block):
    """x <- x + Mixer(Norm(x)) + FeedForward(Norm'(x)), with a norm of its own for each.

    Source: Black et al. 2022 (GPT-NeoX-20B), section 2.1.2, and its released code.
    """

    def beside(self, x_btd: jax.Array, x_normal_btd: jax.Array) -> jax.Array:
        """The block's input, normalised for the feed-forward network."""
        return self._before("feed_forward", x_btd)


def with_parallel_norms(c: Any, stack: Stack) -> Stack:
    """The stack with `ParallelNorms` for its blocks."""
    blocks = (ParallelNorms(**{name: getattr(block, name) for name in FIELDS}) for block in stack.blocks)
    return dataclasses.replace(stack, blocks=tuple(blocks))


FIELDS = [field.name for field in dataclasses.fields(Block) if field.name != "name"]
