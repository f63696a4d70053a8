"""Beginning with the parameters of another run: which are taken over, which are new, and which are left."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from transformer.errors import UserError
from transformer.training.checkpoint import Checkpoints, arrays
from transformer.training.experiment import Params

SHOWN = 8
"""How many paths an error lists."""


@dataclass(frozen=True)
class TakeOver:
    """The parameters of a run's last checkpoint beside those of a model, by their paths.

    `taken` are in both, `new` in the model alone, `left` in the checkpoint alone.
    """

    folder: Path
    taken: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]

    @classmethod
    def plan(cls, folder: Path, abstract: Params, may_be_new: tuple[str, ...] | None) -> "TakeOver":
        """Compares the parameters of the run in `folder` with `abstract`, the model's; nothing is read yet.

        Raises:
          UserError: the folder has no checkpoint; an array has another shape here; the model has an array
            that the checkpoint lacks and whose path has no part among `may_be_new` (None: all may be); or
            nothing is in both.
        """
        with _checkpoints(folder) as checkpoints:
            there = checkpoints.stored_params()
        here = arrays(abstract)
        differing = [
            f"{path} is {list(there[path][0])} there and {list(here[path][0])} here"
            for path in here
            if path in there and there[path][0] != here[path][0]
        ]
        if differing:
            raise UserError(f"initialize_from: {folder} has other shapes: {_some(differing)}")
        new = tuple(path for path in here if path not in there)
        lacking = [path for path in new if may_be_new is not None and not has_part(path, may_be_new)]
        taken = tuple(path for path in here if path in there)
        if lacking or not taken:
            hint = " (initialize_strict=false lets it begin anew)" if taken else ""
            raise UserError(f"initialize_from: {folder} lacks {_some(lacking or list(new))}{hint}")
        return cls(folder, taken, new, tuple(path for path in there if path not in here))

    def table(self) -> list[str]:
        """One line for each group of parameters: what became of it."""
        return [
            line
            for what, paths in (("taken", self.taken), ("new", self.new), ("left", self.left))
            for line in _grouped(what, paths)
        ]

    def apply(self, params: Params) -> Params:
        """`params`, where they were taken those of the checkpoint, onto the same devices."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(params)
        paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
        wanted: dict[str, Any] = {}
        for path, (_, leaf) in zip(paths, leaves, strict=True):
            if path in self.taken:
                *groups, name = path.split("/")
                group = wanted
                for part in groups:
                    group = group.setdefault(part, {})
                group[name] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        with _checkpoints(self.folder) as checkpoints:
            found = checkpoints.restore_some(wanted)
        flat = {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(found)
        }
        new = [flat.get(path, leaf) for path, (_, leaf) in zip(paths, leaves, strict=True)]
        return jax.tree.unflatten(structure, new)


def has_part(path: str, parts: tuple[str, ...]) -> bool:
    """Whether one of the names of a path, "encoder/trunk/blocks", is among `parts`."""
    return bool(set(path.split("/")) & set(parts))


def _checkpoints(folder: Path) -> Checkpoints:
    if not (folder / "checkpoints").is_dir():
        raise UserError(f"initialize_from: {folder} has no checkpoints; expected the folder of a run")
    return Checkpoints(folder / "checkpoints", write=False)


def _grouped(what: str, paths: tuple[str, ...]) -> list[str]:
    groups: dict[str, int] = {}
    for path in paths:
        group = "/".join(path.split("/")[:3])
        groups[group] = groups.get(group, 0) + 1
    return [
        f"  {what:5}  {group}" + (f" ({count} arrays)" if count > 1 else "")
        for group, count in groups.items()
    ]


def _some(items: list[str]) -> str:
    return ", ".join(items[:SHOWN]) + (f" and {len(items) - SHOWN} more" if len(items) > SHOWN else "")
