"""Stacks of Transformer blocks, scanned or unrolled with the same parameters.

The parameters of all blocks are trees whose leaves have a leading `layers` axis. Scanned, unrolled and
rematerialised stacks are the same function of the same parameters and random numbers, so checkpoints do not
depend on these options.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.attention.masks import Mask
from transformer.layers.block import Block
from transformer.layers.mixers.base import SHARED, Mixer
from transformer.layers.remat import rematerialised
from transformer.layers.variants.scanned import scanned

COLLECTIONS = ("intermediates", "terms")
"""Collections that blocks may sow into: intermediates for inspection, and `Sum`s for the loss."""

Transform = Callable[[Callable, Any, Any, Any], Any]
"""A flax method interceptor (see `nn.intercept_methods`) that changes what modules of a block compute."""

State = tuple[jax.Array, dict[str, Any]]
"""Values that a block changes: x (b, t, d), and the variables of `SHARED`."""


@dataclasses.dataclass(frozen=True)
class Stack:
    """`num_layers` blocks; layer i is `blocks[i mod m]`, of the kind `kinds[i mod m]`.

    If the blocks of all kinds have parameters of the same shapes, these are one tree with a leading `layers`
    axis; otherwise {kind: tree}, each with the layers of that kind. Parameters below a name of `tied` are the
    same in all layers of a tree, and have one entry on this axis.

    With `scan` one round of m blocks is compiled and scanned over the layers, and the layers after the last
    whole round are unrolled; `remat` is a key of `REMAT`; `drops` says whether blocks have dropout.
    `transforms` are in effect in all methods of blocks.

    A block gets the number of its layer as `mask.layer`, and the variables of the collection `SHARED` that
    the layers before it left.
    """

    blocks: tuple[Block, ...]
    kinds: tuple[str, ...]
    num_layers: int
    scan: bool = False
    remat: str = "none"
    drops: bool = False
    tied: tuple[str, ...] = ()
    transforms: tuple[Transform, ...] = ()

    def init(self, rng: jax.Array, x_btd: jax.Array) -> Any:
        """The initial parameters; only the width and the type of x matter."""
        rngs_n, x_11d = jax.random.split(rng, self.num_layers), jnp.zeros_like(x_btd[:1, :1])
        inputs = {"memory": x_11d, "mask": Mask(), "positions_bt": jnp.zeros((1, 1), jnp.int32)}

        def stacked(block: Block, rngs_n: jax.Array) -> Any:
            params_n = jax.vmap(lambda rng: self.call(block.init, rng, x_11d, **inputs).get("params"))(rngs_n)
            if params_n is None:
                have = "none of norm, feed_forward and mixer has any"
                raise UserError(f"config.model: a kind of layers has no parameters: {have}")
            params_n = nn.meta.add_axis(params_n, 0, {nn.PARTITION_NAME: "layers"})
            return _only_first(self.tied, params_n) if self.tied else params_n

        if len(set(self.kinds)) == 1:
            return stacked(self.blocks[0], rngs_n)
        return self._init_kinds(stacked, rngs_n)

    def _init_kinds(self, stacked: Callable[[Block, jax.Array], Any], rngs_n: jax.Array) -> Any:
        kinds = dict(zip(self.kinds, self.blocks, strict=True))
        trees = [jax.eval_shape(functools.partial(stacked, block), rngs_n) for block in kinds.values()]
        if all(jax.tree.flatten(tree) == jax.tree.flatten(trees[0]) for tree in trees):
            return stacked(self.blocks[0], rngs_n)
        of_layers = [self.kinds[i % len(self.kinds)] for i in range(self.num_layers)]
        return {
            kind: stacked(block, rngs_n[jnp.array([i for i, name in enumerate(of_layers) if name == kind])])
            for kind, block in kinds.items()
        }

    def declare(self, owner: nn.Module, name: str, x: Any) -> Any:
        """The stack's parameters under `name` of the module `owner`, which `init` makes if they do not
        exist; x is that of `run`."""
        # `param` would trace `init`, and with it all blocks, in every call, only to compare shapes.
        if owner.has_variable("params", name):
            return owner.get_variable("params", name)
        return owner.param(name, self.init, _state(x)[0])

    def unstack(self, params: Any) -> list[Any]:
        """One tree per layer, in order."""
        if set(params) != set(self.kinds):
            return _unstack(params, self.num_layers)
        kinds = [self.kinds[i % len(self.kinds)] for i in range(self.num_layers)]
        layers = {kind: iter(_unstack(tree, kinds.count(kind))) for kind, tree in params.items()}
        return [next(layers[kind]) for kind in kinds]

    def run(
        self,
        owner: nn.Module,
        name: str,
        params: Any,
        x: Any,
        *,
        caches: Sequence[Any] = (),
        keep: Callable[[Mixer, Any], Any] = lambda mixer, cache: cache,
        train: bool = False,
        **inputs: Any,
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """Applies all blocks to a sequence: (b, t, d) -> (b, t, d); `inputs` are passed to each. x may also
        be (x, variables), which blocks find in `SHARED`.

        With `caches` of earlier tokens, one of each layer, the second result is what `keep(mixer, cache)`
        leaves of each layer's new cache; it is computed within the layer, so that the whole cache may be
        rematerialised.

        `owner`, the module of the stack, provides the random numbers of each layer. Values that blocks sow
        into mutable collections are sown there under `name`, as a list with an entry per layer.
        """
        collections = [] if owner.is_initializing() else [*filter(owner.is_mutable_collection, COLLECTIONS)]
        dropping = train and self.drops
        rngs_n = jax.random.split(owner.make_rng("dropout"), self.num_layers) if dropping else None
        inputs |= {"train": train, "mutable": [*collections, SHARED]}

        def run_block(i: int, state: State, layer: Any, params: Any, cache: Any) -> Any:
            block = self.blocks[i].clone(name=f"{name}/{self.kinds[i]}".rstrip("/"))
            rngs = {} if rngs_n is None else {"dropout": rngs_n[layer]}
            state, cache, sown = self._run_block(block, state, layer, params, cache, rngs=rngs, **inputs)
            return state, (sown, keep(block.mixer, cache))

        runners: list[Callable] = [functools.partial(run_block, i) for i in range(len(self.blocks))]
        if self.remat != "none":
            in_loop = self.scan and self.num_layers % len(runners) == 0
            runners = [rematerialised(run, self.remat, prevent_cse=not in_loop) for run in runners]

        def run_layers(state: State, first: Any, layers: Sequence[Any]) -> tuple[State, list[Any]]:
            results = []
            for i, layer in enumerate(layers):
                with jax.named_scope(f"block_{i}"):  # for profiler traces
                    state, result = runners[i % len(runners)](state, first + i, *layer)
                results.append(result)
            return state, results

        caches = caches or (None,) * self.num_layers
        if self.scan:
            (x_btd, _), results = scanned(self, run_layers, _state(x), params, caches)
        else:
            layers = [*zip(self.unstack(params), caches, strict=True)]
            (x_btd, _), results = run_layers(_state(x), 0, layers)
        for collection in collections:
            owner.sow(collection, name, [sown.get(collection, {}) for sown, _ in results])
        return x_btd, tuple(cache for _, cache in results)

    def extend(
        self, layers: list[Any], x: Any, caches: Sequence[Any], memories: Sequence[Any] = (), **inputs: Any
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """Applies all blocks to new tokens in the step form, with a cache per layer (and the keys and values
        of a memory per layer), and the parameters by `unstack`; x is as for `run`.

        Always unrolled, so that each layer updates its cache in place, and a loop over tokens does not slice
        the parameters in its body.
        """
        state, inputs["mutable"] = _state(x), [SHARED]
        extended, memories = [], memories or (None,) * self.num_layers
        for i, (params, cache, memory) in enumerate(zip(layers, caches, memories, strict=True)):
            inputs["memory"] = memory
            state, cache, _ = self._run_block(self.block(i), state, i, params, cache, **inputs)
            extended.append(cache)
        return state[0], tuple(extended)

    def _run_block(
        self, block: Block, state: State, layer: Any, params: Any, cache: Any, **inputs: Any
    ) -> tuple[State, Any, Any]:
        """The state behind a block, its new cache, and what it sowed."""
        x_btd, shared = state
        inputs["mask"] = dataclasses.replace(inputs["mask"], layer=layer)
        variables = {"params": params, SHARED: shared}
        (x_btd, cache), sown = self.call(block.apply, variables, x_btd, cache, **inputs)
        return (x_btd, sown.pop(SHARED, {})), cache, sown

    def call(self, function: Callable, /, *inputs: Any, **options: Any) -> Any:
        """Calls a method of a block, `init` or `apply`, with the transforms of the stack."""
        with contextlib.ExitStack() as context:
            for transform in self.transforms:
                context.enter_context(nn.intercept_methods(transform))
            return function(*inputs, **options)

    def block(self, i: int) -> Block:
        """The block of layer i."""
        return self.blocks[i % len(self.blocks)]

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of each layer."""
        return [self.block(i).mixer for i in range(self.num_layers)]


def _state(x: Any) -> State:
    return x if isinstance(x, tuple) else (x, {})


def _only_first(names: Sequence[str], params_n: Any) -> Any:
    """The parameters of n layers, boxed; of those below one of the names only the first layer's."""

    def cut(path: tuple, x: jax.Array) -> jax.Array:
        tied = any(isinstance(key, jax.tree_util.DictKey) and key.key in names for key in path)
        return x[:1] if tied else x

    return jax.tree_util.tree_map_with_path(cut, params_n)


@functools.partial(jax.jit, static_argnums=1, inline=True)  # one program where it is not part of another
def _unstack(params_n: Any, n: int) -> list[Any]:
    # One split makes the gradient one concatenation; indexing layer by layer would sum as many full-size
    # arrays as there are layers.
    leaves, structure = jax.tree.flatten(params_n)
    tied_too = [jnp.broadcast_to(leaf, (n, *leaf.shape[1:])) for leaf in leaves]
    layers = zip(*(jax.lax.split(leaf, [1] * n) for leaf in tied_too), strict=True)
    return [jax.tree.unflatten(structure, [part[0] for part in layer]) for layer in layers]
