"""Training some parameters only, or some more slowly than others."""

import difflib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.errors import UserError
from transformer.training.experiment import Params

BELOW = {
    "cls",
    "embedding",
    "embedding_norm",
    "position",
    "source_embedding",
    "source_position",
    "token_types",
}
"""Names of what lies below the first block."""


@dataclass(frozen=True)
class Tuning:
    """What is trained, and how fast: keys of a config's `optimizer` group."""

    layer_decay: float = 1.0
    frozen_layers: int = 0
    train_only: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.layer_decay <= 1:
            raise UserError(f"layer_decay: {self.layer_decay}; expected a factor in (0, 1]")
        if self.frozen_layers < 0:
            raise UserError(f"frozen_layers: {self.frozen_layers}; expected a number of blocks, or 0")


def multipliers(params: Params, config: Tuning) -> Params:
    """What each parameter's update is multiplied by: scalars, or (n, 1, ...) for the n stacked blocks.

    `layer_decay` d gives block i of n the factor d^(n - 1 - i), what lies below the blocks d^n, and what lies
    above them 1 (Clark et al. 2020, ELECTRA, appendix A; Howard and Ruder 2018). The lowest `frozen_layers`
    blocks, and with any of them what lies below, have 0. With `train_only`, beginnings of names with commas
    between, all has 0 in whose path no name begins so.
    """
    only = tuple(name.strip() for name in config.train_only.split(",") if name.strip())
    leaves = jax.tree_util.tree_leaves_with_path(params)
    depth = max((leaf.shape[0] for path, leaf in leaves if _in_blocks(path)), default=0)

    def multiplier(path: tuple, leaf: jax.Array) -> np.ndarray | float:
        names, n = _names(path), leaf.shape[0] if leaf.ndim else 0
        if only and not any(name.startswith(only) for name in names):
            return 0.0
        if _in_blocks(path) and config.frozen_layers < n:
            number_n = np.arange(n)
            factor_n = np.where(
                number_n < config.frozen_layers, 0.0, config.layer_decay ** (n - 1.0 - number_n)
            )
            return factor_n.astype(np.float32).reshape(-1, *[1] * (leaf.ndim - 1))
        below = bool(names & BELOW)
        if config.frozen_layers and (below or _in_blocks(path)):
            return 0.0
        return config.layer_decay**depth if below else 1.0

    return jax.tree_util.tree_map_with_path(multiplier, params)


def check_adapters(params: Params, config: Tuning) -> None:
    """Refuses low-rank corrections beside which all that they correct would be trained too."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    if not config.train_only and any(name.startswith("lora") for path in paths for name in _names(path)):
        raise UserError(
            "config.optimizer.train_only: with model.lora_rank, say what is trained: lora,head for example"
        )


def check_tuning(params: Params, config: Tuning) -> None:
    """Refuses what would train another thing than was meant: a name in `train_only` with which no parameter's
    begins, and more frozen blocks than there are."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    names = sorted({name for path, _ in leaves for name in _names(path)})
    for only in filter(None, map(str.strip, config.train_only.split(","))):
        if not any(name.startswith(only) for name in names):
            near = difflib.get_close_matches(only, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"names there: {', '.join(names)}"
            raise UserError(f"config.optimizer.train_only: no parameter's name begins with {only!r}; {hint}")
    depth = max((leaf.shape[0] for path, leaf in leaves if _in_blocks(path)), default=0)
    if config.frozen_layers > depth:
        raise UserError(
            f"config.optimizer.frozen_layers: {config.frozen_layers}; the model has {depth} blocks"
        )


def is_tuned(config: Tuning) -> bool:
    """Whether not everything is trained alike."""
    return config.layer_decay < 1 or config.frozen_layers > 0 or bool(config.train_only)


def frozen(params: Params, config: Tuning) -> Params:
    """What is not trained at all: True or False for each parameter, and for stacked blocks of which some are
    trained an array (n, 1, ...) of them."""

    def is_frozen(multiplier: np.ndarray | float) -> np.ndarray | bool:
        zero = np.asarray(multiplier) == 0
        return zero if zero.any() and not zero.all() else bool(zero.all())

    return jax.tree.map(is_frozen, multipliers(params, config))


def hold(params: Params, frozen: Params) -> Params:
    """`params` without a gradient where `frozen` says so: what it costs to train grows with what is trained,
    and what is held counts in no norm."""

    def held(param: jax.Array, frozen: np.ndarray | bool) -> jax.Array:
        if isinstance(frozen, bool):
            return jax.lax.stop_gradient(param) if frozen else param
        return jnp.where(frozen, jax.lax.stop_gradient(param), param)

    return jax.tree.map(held, params, frozen)


def tuned(optimizer: optax.GradientTransformation, config: Tuning) -> optax.GradientTransformation:
    """The optimizer with its updates times `multipliers`; of what is frozen it keeps no state, neither of
    whole parameters nor of the lowest of stacked blocks, which it never sees."""
    if not is_tuned(config):
        return optimizer

    def labels(params: Params) -> Params:
        def label(each: np.ndarray | bool) -> str:
            return "frozen" if each is True else "trained"

        return jax.tree.map(label, frozen(params, config))

    def cut(path: tuple, leaf: jax.Array) -> jax.Array:
        return leaf[config.frozen_layers :] if _in_blocks(path) else leaf

    def trained(tree: Params) -> Params:
        return jax.tree_util.tree_map_with_path(cut, tree) if config.frozen_layers else tree

    def init(params: Params) -> optax.OptState:
        return optimizer.init(trained(params))

    def update(updates: Params, state: optax.OptState, params: Params) -> tuple:
        found, state = optimizer.update(trained(updates), state, trained(params))

        def whole(update: jax.Array, param: jax.Array, multiplier: np.ndarray | float) -> jax.Array:
            missing = param.shape[0] - update.shape[0] if param.ndim else 0
            return jnp.pad(update, [(missing, 0), *[(0, 0)] * (param.ndim - 1)][: param.ndim]) * multiplier

        return jax.tree.map(whole, found, params, multipliers(params, config)), state

    both = {"trained": optax.GradientTransformation(init, update), "frozen": optax.set_to_zero()}
    return optax.partition(both, labels)


def _names(path: tuple) -> set[str]:
    return {str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)}


def _in_blocks(path: tuple) -> bool:
    return any(name.endswith("blocks") for name in _names(path))
