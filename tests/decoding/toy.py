"""Steppers without parameters: a Markov chain, whose logits are rows of a table, and a tree, with a row for
every history."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct


@struct.dataclass
class Chain:
    """The next token depends on the last one and, with `stride`, on how many there are.

    `counter` counts the calls of `step` and `extend` that are executed, by a callback.
    """

    table_nv: jax.Array
    counter: object = struct.field(pytree_node=False, default=None)

    @property
    def vocab_size(self) -> int:
        return self.table_nv.shape[-1]

    def prefill(self, tokens_bt, lengths_b, room, rewound=0):
        last_b = jnp.take_along_axis(jnp.asarray(tokens_bt), lengths_b[:, None] - 1, axis=1)[:, 0]
        return self.table_nv[last_b], lengths_b

    def step(self, tokens_b, cache):
        if self.counter is not None:
            jax.debug.callback(self.counter)
        return self.table_nv[tokens_b], cache + 1

    def extend(self, tokens_bn, cache):
        if self.counter is not None:
            jax.debug.callback(self.counter)
        return self.table_nv[tokens_bn], cache + tokens_bn.shape[1]

    def grow(self, cache, more, rewound=0):
        return cache

    def rewind(self, cache, n):
        return cache - n

    def repeat(self, cache, n):
        return jnp.repeat(cache, n)

    def reorder(self, cache, rows_b):
        return cache[rows_b]


@struct.dataclass
class Tree:
    """The next token depends on the prompt's last one and on every new one: `table_rnv[r]` has a row for
    each node of the tree of continuations of a prompt that ends with r, the children of node i in
    rows i v + 1 ... i v + v."""

    table_rnv: jax.Array
    counter: object = struct.field(pytree_node=False, default=None)

    @property
    def vocab_size(self) -> int:
        return self.table_rnv.shape[-1]

    def prefill(self, tokens_bt, lengths_b, room, rewound=0):
        root_b = jnp.take_along_axis(jnp.asarray(tokens_bt), lengths_b[:, None] - 1, axis=1)[:, 0]
        cache = {"root": root_b, "node": jnp.zeros_like(root_b)}
        return self._logits(cache), cache

    def step(self, tokens_b, cache):
        if self.counter is not None:
            jax.debug.callback(self.counter)
        cache = cache | {"node": cache["node"] * self.vocab_size + tokens_b + 1}
        return self._logits(cache), cache

    def extend(self, tokens_bn, cache):
        cache, logits_nbv = jax.lax.scan(lambda c, token_b: self.step(token_b, c)[::-1], cache, tokens_bn.T)
        return logits_nbv.swapaxes(0, 1), cache

    def grow(self, cache, more, rewound=0):
        return cache

    def rewind(self, cache, n):
        parent = jax.lax.fori_loop(0, n, lambda _, node_b: (node_b - 1) // self.vocab_size, cache["node"])
        return cache | {"node": parent}

    def repeat(self, cache, n):
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, n), cache)

    def reorder(self, cache, rows_b):
        return jax.tree.map(lambda leaf: leaf[rows_b], cache)

    def _logits(self, cache):
        return self.table_rnv[cache["root"], cache["node"]]


class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1


def chain(rng: np.random.Generator, vocabulary: int, scale: float = 2.0, counter=None) -> Chain:
    table = rng.normal(size=(vocabulary, vocabulary), scale=scale).astype(np.float32)
    return Chain(jnp.asarray(table), counter)


def cycle(vocabulary: int, counter=None) -> Chain:
    """Token i is followed by i + 1 with a probability of almost 1."""
    table = 50.0 * np.roll(np.eye(vocabulary, dtype=np.float32), 1, axis=1)
    return Chain(jnp.asarray(table), counter)


def tree(rng: np.random.Generator, roots: int, vocabulary: int, depth: int, scale: float = 1.5) -> Tree:
    """A random tree of continuations of up to `depth` tokens, for each of that many last tokens."""
    nodes = sum(vocabulary**i for i in range(depth + 1))
    return Tree(jnp.asarray(rng.normal(size=(roots, nodes, vocabulary), scale=scale), jnp.float32))
