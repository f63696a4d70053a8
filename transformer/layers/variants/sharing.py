"""Parameters that all layers of a stack share: they have one entry on the axis of the layers."""

from collections.abc import Sequence
from typing import Any

import jax
from flax import linen as nn

Boxed = nn.meta.AxisMetadata


def first_of(names: Sequence[str], params_n: Any) -> Any:
    """The parameters of n layers, boxed; of those below one of the names only the first layer's."""

    def cut(path: tuple, box: Any) -> Any:
        return jax.tree.map(lambda x: x[:1], box) if _below(path, names) else box

    return jax.tree_util.tree_map_with_path(cut, params_n, is_leaf=lambda x: isinstance(x, Boxed))


def apart(names: Sequence[str], params_n: Any) -> tuple[Any, Any]:
    """The parameters that each layer has of its own, and the shared ones: each with None in place of the
    others."""

    def chosen(shared: bool) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, x: x if _below(path, names) == shared else None, params_n
        )

    return chosen(False), chosen(True)


def joined(own: Any, shared: Any) -> Any:
    """The tree that `apart` took apart."""
    return jax.tree.map(lambda x, y: y if x is None else x, own, shared, is_leaf=lambda x: x is None)


def _below(path: tuple, names: Sequence[str]) -> bool:
    return any(getattr(part, "key", None) in names for part in path)
