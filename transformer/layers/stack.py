"""Stacks of Transformer blocks, scanned or unrolled with the same parameters.

The parameters of all blocks are trees whose leaves have a leading `layers` axis. Scanned, unrolled and
rematerialised stacks are the same function of the same parameters and random numbers, so checkpoints do not
depend on these options.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_policies as policies

from transformer.devices import platform
from transformer.errors import UserError
from transformer.layers.attention.cache import KVCache
from transformer.layers.attention.kernels.scores import SAVED
from transformer.layers.attention.masks import Mask
from transformer.layers.block import Block
from transformer.layers.mixers import Mixer
from transformer.layers.variants.sharing import apart, first_of, joined

HOST = "pinned_host"
"""The memory that `offload` moves activations to."""

OFFLOADING = ("cpu", "gpu", "nvidia", "tpu")
"""Platforms with this memory, by `devices.platform`."""

REMAT: dict[str, Callable | None] = {
    "none": None,
    "full": policies.nothing_saveable,
    "dots": policies.checkpoint_dots,
    "dots_no_batch": policies.dots_with_no_batch_dims_saveable,
    "attention": policies.save_only_these_names(SAVED),
    "offload": policies.offload_dot_with_no_batch_dims("device", HOST),
}
"""Values that the forward pass saves for the backward pass: everything; only the inputs of blocks; all matrix
products; only products with weights, which have no batch axis; the outputs of attention kernels; or the
products with weights, in host memory (Chen et al. 2016, "Training deep nets with sublinear memory cost")."""

Runners = Sequence[Callable[[jax.Array, Any, Any, Any], tuple[jax.Array, Any]]]
"""For each kind of block, a function of (b, t, d), parameters, (random numbers or None, the layer's index or
None) and a cache -> (b, t, d), (sown values, the new cache)."""

COLLECTIONS = ("intermediates", "terms")
"""Collections that blocks may sow into: intermediates for inspection, and `Sum`s for the loss."""


@dataclasses.dataclass(frozen=True)
class Stack:
    """`num_layers` blocks; layer i is `blocks[i mod m]`, of the kind `kinds[i mod m]`.

    If the blocks of all kinds have parameters of the same shapes, these are one tree with a leading `layers`
    axis; otherwise {kind: tree}, each with the layers of that kind. Parameters below a name of `shared` are
    the same in all layers of a tree, and have one entry on this axis.

    With `scan` one round of m blocks is compiled and scanned over the layers, and the layers after the last
    whole round are unrolled; `remat` is a key of `REMAT`; `drops` says whether blocks have dropout.
    """

    blocks: tuple[Block, ...]
    kinds: tuple[str, ...]
    num_layers: int
    scan: bool = False
    remat: str = "none"
    drops: bool = False
    shared: tuple[str, ...] = ()

    def init(self, rng: jax.Array, x_btd: jax.Array) -> Any:
        """The initial parameters; only the width and the type of x matter."""
        rngs_n, x_11d = jax.random.split(rng, self.num_layers), jnp.zeros_like(x_btd[:1, :1])
        inputs = {"memory": x_11d, "mask": Mask(), "positions_bt": jnp.zeros((1, 1), jnp.int32)}

        def stacked(block: Block, rngs_n: jax.Array) -> Any:
            params_n = jax.vmap(lambda rng: block.init(rng, x_11d, **inputs).get("params"))(rngs_n)
            if params_n is None:
                have = "none of norm, feed_forward and mixer has any"
                raise UserError(f"config.model: a kind of layers has no parameters: {have}")
            return first_of(self.shared, nn.meta.add_axis(params_n, 0, {nn.PARTITION_NAME: "layers"}))

        if len(set(self.kinds)) == 1:
            return stacked(self.blocks[0], rngs_n)
        return self._init_kinds(stacked, rngs_n)

    def _init_kinds(self, stacked: Callable[[Block, jax.Array], Any], rngs_n: jax.Array) -> Any:
        kinds, m = dict(zip(self.kinds, self.blocks, strict=True)), len(self.kinds)
        trees = [jax.eval_shape(functools.partial(stacked, block), rngs_n) for block in kinds.values()]
        if all(jax.tree.flatten(tree) == jax.tree.flatten(trees[0]) for tree in trees):
            return stacked(self.blocks[0], rngs_n)
        layers = {kind: [i for i in range(self.num_layers) if self.kinds[i % m] == kind] for kind in kinds}
        return {kind: stacked(block, rngs_n[jnp.array(layers[kind])]) for kind, block in kinds.items()}

    def declare(self, owner: nn.Module, name: str, x_btd: jax.Array) -> Any:
        """The stack's parameters under `name` of the module `owner`, which `init` makes if they do not
        exist."""
        # `param` would trace `init`, and with it all blocks, in every call, only to compare shapes.
        if owner.has_variable("params", name):
            return owner.get_variable("params", name)
        return owner.param(name, self.init, x_btd)

    def unstack(self, params: Any) -> list[Any]:
        """One tree per layer, in order."""
        if set(params) != set(self.kinds):
            return _unstack(params, self.num_layers)
        layers = {kind: iter(_unstack(params_n, self.counts[kind])) for kind, params_n in params.items()}
        return [next(layers[self.kinds[i % len(self.kinds)]]) for i in range(self.num_layers)]

    @property
    def counts(self) -> dict[str, int]:
        """The number of layers of each kind."""
        kinds = [self.kinds[i % len(self.kinds)] for i in range(self.num_layers)]
        return {kind: kinds.count(kind) for kind in self.kinds}

    def run(
        self,
        owner: nn.Module,
        name: str,
        params: Any,
        x_btd: jax.Array,
        *,
        caches: Sequence[Any] = (),
        keep: Callable[[Mixer, Any], Any] = lambda mixer, cache: cache,
        train: bool = False,
        **inputs: Any,
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """Applies all blocks to a sequence: (b, t, d) -> (b, t, d); `inputs` are passed to each.

        With `caches` of earlier tokens, one of each layer, the second result is what `keep(mixer, cache)`
        leaves of each layer's new cache; it is computed within the layer, so that the whole cache may be
        rematerialised.

        `owner`, the module of the stack, provides the random numbers of each layer. Values that blocks sow
        into mutable collections are sown there under `name`, as a list with an entry per layer.
        """
        asked = [] if owner.is_initializing() else [*filter(owner.is_mutable_collection, COLLECTIONS)]
        dropping = train and self.drops
        rngs_n = jax.random.split(owner.make_rng("dropout"), self.num_layers) if dropping else None
        given_n = rngs_n, jnp.arange(self.num_layers) if self.draws else None

        def run_block(i: int, x_btd: jax.Array, params: Any, given: Any, cache: Any) -> Any:
            (rng, layer), mask = given, inputs["mask"]
            options = {"rngs": {} if rng is None else {"dropout": rng}, "mutable": asked, "train": train}
            options |= inputs | {"mask": dataclasses.replace(mask, layer=layer)}
            block = self.blocks[i].clone(name=f"{name}/{self.kinds[i]}".rstrip("/"))
            (x_btd, cache), sown = block.apply({"params": params}, x_btd, cache, **options)
            return x_btd, (sown, keep(block.mixer, cache))

        runners: Runners = [functools.partial(run_block, i) for i in range(len(self.blocks))]
        if self.remat != "none":
            in_loop = self.scan and self.num_layers % len(runners) == 0
            runners = [rematerialised(run, self.remat, prevent_cse=not in_loop) for run in runners]
        over_layers = self._scanned if self.scan else self._in_turn
        x_btd, found = over_layers(runners, x_btd, params, given_n, caches or (None,) * self.num_layers)
        for collection in asked:
            owner.sow(collection, name, [sown.get(collection, {}) for sown, _ in found])
        return x_btd, tuple(cache for _, cache in found)

    def _in_turn(
        self, runners: Runners, x_btd: jax.Array, params: Any, given_n: Any, caches: Sequence[Any]
    ) -> tuple[jax.Array, list[Any]]:
        found, given = [], [jax.tree.map(operator.itemgetter(i), given_n) for i in range(self.num_layers)]
        for i, layer in enumerate(zip(self.unstack(params), given, caches, strict=True)):
            with jax.named_scope(f"block_{i}"):  # for profiler traces
                x_btd, of_layer = runners[i % len(runners)](x_btd, *layer)
            found.append(of_layer)
        return x_btd, found

    def _scanned(
        self, runners: Runners, x_btd: jax.Array, params: Any, given_n: Any, caches: Sequence[Any]
    ) -> tuple[jax.Array, list[Any]]:
        m = len(runners)
        rounds, rest = divmod(self.num_layers, m)
        # The caches of different kinds may have different shapes, so each place in a round has a stack.
        caches_m = [
            jax.tree.map(lambda *each: jnp.stack(each), *caches[i : rounds * m : m]) for i in range(m)
        ]
        own, shared = apart(self.shared, params)
        last: Any = None
        if m == 1:  # avoids a reshape, for which XLA would keep a copy of each layer's parameters
            first_of_all = jax.tree.map(operator.itemgetter(0), shared)
            x_btd, of_layers = jax.lax.scan(
                lambda x_btd, layer: runners[0](x_btd, joined(layer[0], first_of_all), *layer[1:]),
                x_btd,
                (own, given_n, caches_m[0]),
            )
            stacked = [of_layers]
        else:
            first, last = self._cut(own, rounds)
            first, last = (first, jax.tree.map(lambda x: x[: rounds * m], given_n)), joined(last, shared)
            first = jax.tree.map(lambda x: x.reshape(rounds, -1, *x.shape[1:]), first)
            run_round = functools.partial(dataclasses.replace(self, num_layers=m)._in_turn, runners)
            x_btd, stacked = jax.lax.scan(
                lambda x_btd, layers: run_round(x_btd, joined(layers[0], shared), *layers[1:]),
                x_btd,
                (*first, caches_m),
            )
        found = [jax.tree.map(operator.itemgetter(i // m), stacked[i % m]) for i in range(rounds * m)]
        if rest:
            given_n = jax.tree.map(lambda x: x[rounds * m :], given_n)
            shorter = dataclasses.replace(self, num_layers=rest)
            x_btd, of_rest = shorter._in_turn(runners, x_btd, last, given_n, caches[rounds * m :])
            found += of_rest
        return x_btd, found

    def _cut(self, params: Any, rounds: int) -> tuple[Any, Any]:
        """The parameters of that many rounds, and of the layers after them."""
        by_kind = set(params) == set(self.kinds)

        def end(path: Any) -> int:
            return rounds * (self.kinds.count(path[0].key) if by_kind else len(self.kinds))

        first = jax.tree_util.tree_map_with_path(lambda path, x: x[: end(path)], params)
        return first, jax.tree_util.tree_map_with_path(lambda path, x: x[end(path) :], params)

    def extend(
        self,
        layers: list[Any],
        x_btd: jax.Array,
        caches: Sequence[Any],
        memories: Sequence[KVCache | None] = (),
        rngs_n: jax.Array | None = None,
        *,
        mask: Mask,
        **inputs: Any,
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """Applies all blocks to new tokens in the step form, with a cache per layer (and the keys and values
        of a memory per layer), and the parameters by `unstack`.

        Always unrolled, so that each layer updates its cache in place, and a loop over tokens does not slice
        the parameters in its body.
        """
        extended = []
        memories = memories or (None,) * self.num_layers
        for i, (params, cache, memory) in enumerate(zip(layers, caches, memories, strict=True)):
            block, rngs = self.block(i), {} if rngs_n is None else {"dropout": rngs_n[i]}
            inputs["mask"] = dataclasses.replace(mask, layer=i if self.draws else None)
            x_btd, cache = block.apply({"params": params}, x_btd, cache, memory, rngs=rngs, **inputs)
            extended.append(cache)
        return x_btd, tuple(extended)

    def block(self, i: int) -> Block:
        """The block of layer i."""
        return self.blocks[i % len(self.blocks)]

    @property
    def draws(self) -> bool:
        """Whether the pattern of any layer draws what it sees by the index of the layer."""
        patterns = [getattr(mixer, "pattern", None) for mixer in self.mixers]
        return any(pattern is not None and pattern.draws for pattern in patterns)

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of each layer."""
        return [self.block(i).mixer for i in range(self.num_layers)]


def rematerialised(run: Callable, remat: str, *, prevent_cse: bool) -> Callable:
    """The function `run`, whose backward pass saves what `REMAT[remat]` says and recomputes the rest.

    Raises:
      UserError: this platform has no memory to offload to.
    """
    if remat == "offload" and platform() not in OFFLOADING:
        expected = ", ".join(repr(name) for name in REMAT if name != "offload")
        raise UserError(f"remat: 'offload', but {platform()} has no {HOST}; expected one of {expected}")
    return jax.checkpoint(run, policy=REMAT[remat], prevent_cse=prevent_cse)


@functools.partial(jax.jit, static_argnums=1, inline=True)  # one program where it is not part of another
def _unstack(params_n: Any, n: int) -> list[Any]:
    # One split makes the gradient one concatenation; indexing layer by layer would sum as many full-size
    # arrays as there are layers.
    def layers(leaf: jax.Array) -> list[jax.Array]:
        parts = [part[0] for part in jax.lax.split(leaf, [1] * leaf.shape[0])]
        return parts * n if len(parts) == 1 else parts

    leaves, structure = jax.tree.flatten(params_n)
    return [jax.tree.unflatten(structure, layer) for layer in zip(*map(layers, leaves), strict=True)]
