"""Beginning with the parameters of another run: which are taken over, which are new, and which are left."""

from dataclasses import dataclass
from pathlib import Path

import jax
from flax import traverse_util

from transformer.errors import UserError
from transformer.training.checkpoint import Checkpoints, arrays
from transformer.training.experiment import Params

ADAPTERS = ("lora_down", "lora_up")
"""Parameters that begin as nothing (see `transformer.layers.linear`): any run may be without them."""

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
            that the checkpoint lacks and whose path has no part among `may_be_new` or `ADAPTERS` (None: all
            may be new); or nothing is in both.
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
        allowed = None if may_be_new is None else {*may_be_new, *ADAPTERS}
        lacking = [path for path in new if allowed is not None and not allowed & {*path.split("/")}]
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
        flat = traverse_util.flatten_dict(params, sep="/")
        wanted = {
            path: jax.ShapeDtypeStruct(flat[path].shape, flat[path].dtype, sharding=flat[path].sharding)
            for path in self.taken
        }
        with _checkpoints(self.folder) as checkpoints:
            found = checkpoints.restore_some(traverse_util.unflatten_dict(wanted, sep="/"))
        return traverse_util.unflatten_dict(flat | traverse_util.flatten_dict(found, sep="/"), sep="/")


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
