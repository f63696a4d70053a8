"""A stack of equal blocks: one parameter layout, run by a scan or unrolled.

The parameters of all blocks are one tree whose leaves have a leading `layers` axis. Running them is plain
functional code over that tree, so scanned and unrolled stacks, rematerialised or not, are the same
function of the same parameters and random numbers, and checkpoints do not know the difference.
"""

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_policies as policies

from transformer.errors import UserError
from transformer.layers.cache import LayerCache
from transformer.layers.kernels.reference import SAVED

HOST = "pinned_host"
"""The memory that `offload` takes things to."""

REMAT: dict[str, Callable | None] = {
    "none": None,
    "full": policies.nothing_saveable,
    "dots": policies.checkpoint_dots,
    "dots_no_batch": policies.dots_with_no_batch_dims_saveable,
    "attention": policies.save_only_these_names(SAVED),
    "offload": policies.offload_dot_with_no_batch_dims("device", HOST),
}
"""What the backward pass keeps from the forward pass: everything; nothing but the blocks' inputs; the results
of all matrix products; only of those with weights, which have no batch axis; what attention's kernels give
back; or the products with weights again, in the host's memory
(Chen et al. 2016, "Training deep nets with sublinear memory cost")."""


def rematerialised(run: Callable, remat: str, *, prevent_cse: bool) -> Callable:
    """The same function, whose backward pass keeps what `REMAT` says of `remat`, and computes the rest anew.

    Raises:
      UserError: this platform has no memory to offload to.
    """
    if REMAT[remat] is None:
        return run
    device = jax.devices()[0]
    if remat == "offload" and HOST not in [memory.kind for memory in device.addressable_memories()]:
        expected = ", ".join(repr(name) for name in REMAT if name != "offload")
        raise UserError(f"remat: 'offload', but {device.platform} has no {HOST}; expected one of {expected}")
    return jax.checkpoint(run, policy=REMAT[remat], prevent_cse=prevent_cse)


def init_stack(block: nn.Module, num_layers: int) -> Callable[..., Any]:
    """An initialiser of the stacked parameters: (rng, *block inputs) -> tree with a `layers` axis."""

    def init(rng: jax.Array, *args, **kwargs) -> Any:
        one = jax.vmap(lambda layer_rng: block.init(layer_rng, *args, **kwargs)["params"])
        return nn.meta.add_axis(one(jax.random.split(rng, num_layers)), 0, {nn.PARTITION_NAME: "layers"})

    return init


def unstack(params_n: Any) -> list[Any]:
    """One tree per layer. Splitting all at once makes the gradient one concatenation, where indexing
    layer by layer would add up as many full-size arrays as there are layers."""
    leaves, structure = jax.tree.flatten(params_n)
    layers = [[part[0] for part in jax.lax.split(leaf, [1] * leaf.shape[0])] for leaf in leaves]
    return [jax.tree.unflatten(structure, layer) for layer in zip(*layers, strict=True)]


def run_stack(
    blocks: Sequence[nn.Module],
    params_n: Any,
    x_btd: jax.Array,
    *,
    rng: jax.Array | None = None,
    scan: bool = False,
    remat: str = "none",
    watch: bool = False,
    **inputs: Any,
) -> tuple[jax.Array, Any]:
    """Applies the blocks in turn: (b, t, d) -> (b, t, d), and their intermediates.

    Layer i is run by the (i mod m)-th of the m `blocks`, which differ in nothing that has parameters.
    `params_n` is the stacked tree of `init_stack`; `rng` gives every layer its own dropout;
    `inputs` go to every block; the second result holds what the blocks sowed, stacked over layers, where
    `watch` is set, and is empty otherwise.
    """
    num_layers = jax.tree.leaves(params_n)[0].shape[0]

    def runner(block: nn.Module) -> Callable:
        def run(x_btd: jax.Array, layer: tuple[Any, jax.Array | None]) -> tuple[jax.Array, Any]:
            params, layer_rng = layer
            rngs = {} if layer_rng is None else {"dropout": layer_rng}
            mutable = ["intermediates"] if watch else []
            (x_btd, _), sown = block.apply({"params": params}, x_btd, rngs=rngs, mutable=mutable, **inputs)
            return x_btd, sown.get("intermediates", {})

        return rematerialised(run, remat, prevent_cse=not scan)

    def run_layers(x_btd: jax.Array, layers: Sequence[Any]) -> tuple[jax.Array, Any]:
        sown = []
        for i, layer in enumerate(layers):
            with jax.named_scope(f"block_{i}"):  # the name of its kernels in a profiler's trace
                x_btd, layer_sown = runners[i % len(runners)](x_btd, layer)
            sown.append(layer_sown)
        return x_btd, jax.tree.map(lambda *leaves: jnp.stack(leaves), *sown)

    runners = [runner(block) for block in blocks]
    rngs_n = None if rng is None else jax.random.split(rng, num_layers)
    if not scan:
        rngs = [None] * num_layers if rngs_n is None else rngs_n
        return run_layers(x_btd, [*zip(unstack(params_n), rngs, strict=True)])
    if len(runners) == 1:
        return jax.lax.scan(runners[0], x_btd, (params_n, rngs_n))
    rounds = jax.tree.map(lambda x: x.reshape(-1, len(runners), *x.shape[1:]), (params_n, rngs_n))

    def run_round(x_btd: jax.Array, layers: Any) -> tuple[jax.Array, Any]:
        return run_layers(x_btd, [jax.tree.map(operator.itemgetter(i), layers) for i in range(len(runners))])

    x_btd, sown = jax.lax.scan(run_round, x_btd, rounds)
    return x_btd, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sown)


def run_blocks(
    owner: nn.Module,
    name: str,
    blocks: Sequence[nn.Module],
    params_n: Any,
    x_btd: jax.Array,
    *,
    dropping: bool,
    train: bool,
    **options: Any,
) -> jax.Array:
    """`run_stack` for the module that owns the blocks: its random numbers, where they drop anything in
    training, and its intermediates, sown under `name` where someone looks at them."""
    watch = owner.is_mutable_collection("intermediates") and not owner.is_initializing()
    rng = owner.make_rng("dropout") if dropping and train else None
    x_btd, sown = run_stack(blocks, params_n, x_btd, rng=rng, watch=watch, train=train, **options)
    if watch:
        owner.sow("intermediates", name, sown)
    return x_btd


def extend_stack(
    blocks: Sequence[nn.Module],
    layers: list[Any],
    x_btd: jax.Array,
    caches: tuple[LayerCache, ...],
    memories: tuple[LayerCache | None, ...] = (),
    rngs_n: jax.Array | None = None,
    **inputs: Any,
) -> tuple[jax.Array, tuple[LayerCache, ...]]:
    """Applies the blocks to new tokens on top of a cache per layer (and, where the blocks look at another
    sequence, what each remembers of it), from parameters already unstacked, with `rngs_n` for dropout.

    Always unrolled: each layer then updates its own cache in place, and a loop over tokens around it
    keeps the per-layer parameters out of its body.
    """
    extended = []
    memories = memories or (None,) * len(layers)
    rngs = [{} if rngs_n is None else {"dropout": rngs_n[i]} for i in range(len(layers))]
    each = zip(itertools.cycle(blocks), layers, caches, memories, rngs, strict=False)
    for block, params, cache, memory, layer_rngs in each:
        x_btd, cache = block.apply({"params": params}, x_btd, cache, memory, rngs=layer_rngs, **inputs)
        extended.append(cache)
    return x_btd, tuple(extended)
