"""A stepper with nothing to learn: a Markov chain, whose logits are a table's rows."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


@struct.dataclass
class Chain:
    """The next token depends on the last one and, with `stride`, on how many there are.

    `steps` counts the calls of `step` that really ran, through a callback.
    """

    table_nv: jax.Array
    counter: object = struct.field(pytree_node=False, default=None)

    @property
    def vocab_size(self) -> int:
        return self.table_nv.shape[-1]

    def prefill(self, tokens_bt, lengths_b, room):
        last_b = jnp.take_along_axis(jnp.asarray(tokens_bt), lengths_b[:, None] - 1, axis=1)[:, 0]
        return self.table_nv[last_b], lengths_b

    def step(self, tokens_b, cache):
        if self.counter is not None:
            jax.debug.callback(self.counter)
        return self.table_nv[tokens_b], cache + 1

    def repeat(self, cache, n):
        return jnp.repeat(cache, n)

    def reorder(self, cache, rows_b):
        return cache[rows_b]


class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1


def chain(rng: np.random.Generator, vocabulary: int, scale: float = 2.0, counter=None) -> Chain:
    table = rng.normal(size=(vocabulary, vocabulary), scale=scale).astype(np.float32)
    return Chain(jnp.asarray(table), counter)


def cycle(vocabulary: int, counter=None) -> Chain:
    """Token i is followed by i + 1, almost surely."""
    table = 50.0 * np.roll(np.eye(vocabulary, dtype=np.float32), 1, axis=1)
    return Chain(jnp.asarray(table), counter)
