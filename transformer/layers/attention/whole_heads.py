"""Key/value heads that every device has whole, for kernels that run on each device's query heads alone."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.devices import sharded_over


def repeated(x_bsgk: jax.Array) -> jax.Array:
    """Keys or values of g heads, which the rules do not shard, for n devices that share the query heads.

    Each head is repeated until n divides their number, lcm(g, n), and each device takes its own: with 8 heads
    on 16 devices, two devices compute with the same one. Gradients of the copies are summed. On one device,
    or where the rules shard key/value heads, the same array.
    """
    g, devices = x_bsgk.shape[2], sharded_over("heads")[1]
    if devices == 1 or sharded_over("kv_heads")[1] > 1:
        return x_bsgk
    x_bshk = jnp.repeat(x_bsgk, math.lcm(g, devices) // g, axis=2)
    return nn.with_logical_constraint(x_bshk, ("batch", "length", "heads", "head_dim"))
