"""The role of each parameter by the logical names of its axes: a vector, a table, or a matrix, and which one.

Axes of `BATCHES` hold several arrays in one, and `HEADS` with their width are one axis. What is left is a
vector if it is one axis; a table if it is two, of which the first is `LOOKED_UP`; or a matrix, of rows and
columns. A matrix is hidden, one that Muon takes, if it is that of a layer or of a recurrent state; others
read inputs or make outputs. The names of modules have no part in it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from transformer.errors import UserError
from transformer.training.parallel import is_boxed

LAYERS = "layers"
"""The first axis of what a stack of layers has."""

BATCHES = (LAYERS, "expert", "gates", "depth")
HEADS = ("heads", "kv_heads")
LOOKED_UP = ("vocab", "positions", "types", "buckets", "distances")

HIDDEN = "state"
"""The axis of the states of recurrent layers, which are not stacked."""


@dataclasses.dataclass(frozen=True)
class Role:
    """The names of a parameter's axes, and the numbers of those that are the `rows` and `columns` of a
    matrix; others have no rows."""

    names: tuple[str | None, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def is_stacked(self) -> bool:
        """Whether the first axis is that of the layers."""
        return self.names[:1] == (LAYERS,)

    @property
    def is_matrix(self) -> bool:
        """Whether tokens are multiplied by it."""
        return bool(self.rows)

    @property
    def is_hidden(self) -> bool:
        """Whether it is a matrix between embeddings and heads."""
        return bool(self.rows) and (self.is_stacked or HIDDEN in self.names)


def role(names: Sequence[str | None], path: str = "") -> Role:
    """The role of a parameter whose axes have these names.

    Raises:
      UserError: they do not say which axes of a matrix are rows and which are columns.
    """
    axes: list[tuple[int, ...]] = []
    for i, name in enumerate(names):
        if name == "head_dim" and i and names[i - 1] in HEADS:
            axes[-1] += (i,)
        elif name not in BATCHES:
            axes.append((i,))
    if len(axes) > 2:
        raise _ambiguous(names, path)
    is_matrix = len(axes) == 2 and names[axes[0][0]] not in LOOKED_UP
    return Role(tuple(names), axes[0] if is_matrix else (), axes[-1] if axes else ())


def _ambiguous(names: Sequence[str | None], path: str) -> UserError:
    return UserError(
        f"{path}: its axes {tuple(names)} do not say which are rows and which columns; expected "
        f"one of each, or {' or '.join(HEADS)} with head_dim, beside {', '.join(BATCHES)}"
    )


def joined(path: tuple) -> str:
    """The names of a path, "encoder/blocks/norm/scale", also of a tree of boxed arrays."""
    return "/".join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))


Roles = Callable[[tuple], Role]
"""The path of a parameter in the tree of all -> its role."""


def unknown(path: tuple) -> Role:
    """The roles of a tree without names of axes; raises `UserError`."""
    raise UserError(
        f"{joined(path)}: it has no names of axes, by which an optimizer treats it; expected "
        "nn.with_logical_partitioning around its initialiser"
    )


def roles_of(boxed: Callable[[], Any]) -> Roles:
    """The roles of the parameters that `boxed()` has with their logical axes; it is called when one is asked.

    Raises:
      UserError: when the role of a parameter is asked that has no names, or none that say what it is.
    """

    @functools.cache
    def axes() -> Mapping[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(boxed(), is_leaf=is_boxed)
        return {joined(path): box.names for path, box in leaves if is_boxed(box)}

    return lambda path: role(axes()[name], name) if (name := joined(path)) in axes() else unknown(path)


def left_by_rules(params: Any, settings: Any) -> Any:
    """`params` with None in place of frozen ones and of those that a rule gives another optimizer, by their
    `ParameterSettings`."""
    return jax.tree.map(
        lambda setting, param: None if setting.rule or setting.frozen is True else param, settings, params
    )


def shares(params: Any, roles: Roles) -> str:
    """Which arrays Muon takes and which Adam, with an example of each; in `params` None stands for others."""
    examples: dict[bool, list[str]] = {True: [], False: []}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        examples[roles(path).is_hidden].append(f"{joined(path)} {list(leaf.shape)}")
    groups = ("Muon", examples[True]), ("Adam", examples[False])
    return "optimizer: " + "; ".join(f"{len(a)} arrays by {by}, as {a[0]}" for by, a in groups if a)
