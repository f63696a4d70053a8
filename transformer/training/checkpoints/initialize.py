"""Warm starts: which parameters of another run are taken, which are new, and which are left out."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import traverse_util

from transformer.errors import UserError
from transformer.json_text import parse_json
from transformer.run_folder import HUB, RunFolder, check_run_file
from transformer.training.checkpoints.checkpoint import Checkpoints, Step, split_step
from transformer.training.checkpoints.checksums import arrays
from transformer.training.checkpoints.function import differences
from transformer.training.experiment import Params
from transformer.training.run_config import RunConfig
from transformer.training.state import State

ADAPTERS = ("lora_down", "lora_up")
"""LoRA parameters, initially without effect; a checkpoint may lack them."""

LABELLED = "head"
"""The part of a path of parameters with one output per label, which fit only the same labels."""

MAX_LISTED = 8
"""The number of paths that an error lists."""


class Origin(Protocol):
    """Parameters that a model may start from, by the paths of a model here."""

    @property
    def name(self) -> str:
        """The folder."""
        ...

    @property
    def labels(self) -> Sequence[str] | None:
        """The labels of its head; None if it has none."""
        ...

    @property
    def config(self) -> RunConfig | None:
        """The config of its run; None if it is not known."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Notes for its user."""
        ...

    def shapes(self) -> dict[str, tuple]:
        """Path -> (shape, type)."""
        ...

    def read(self, abstract: Params) -> Params:
        """The parameters of a tree of `jax.ShapeDtypeStruct`s, which may lack some, with its shardings."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """The parameters in a checkpoint of a run, whose `config` may be known; where the run is evaluated with
    the mean of several, also of those at the steps `before`."""

    folder: Path
    step: int
    before: tuple[int, ...] = ()
    config: RunConfig | None = field(default=None, compare=False)

    @classmethod
    def named(cls, run: str | os.PathLike, config: RunConfig | None = None) -> "Checkpoint":
        """The checkpoint that "runs/bert@200" names, or of "runs/bert" the best, or the last, or the mean of
        the last as `train.average_last` says."""
        folder, step = split_step(run)
        averaged = config.train.average_last if config and step in (None, "latest") else 1
        checkpoints = _checkpoints(folder)
        try:
            number = checkpoints.find(_default_step(checkpoints) if step is None else step)
        except UserError as error:
            raise UserError(f"initialize_from: {error}") from None
        return cls(folder, number, tuple(checkpoints.steps()[-averaged:-1]), config)

    @property
    def name(self) -> str:
        """See `Origin`."""
        return str(self.folder)

    @property
    def labels(self) -> Sequence[str] | None:
        """See `Origin`."""
        return _read(RunFolder(self.folder).labels)

    remarks = ()

    def shapes(self) -> dict[str, tuple]:
        """See `Origin`."""
        return _checkpoints(self.folder).stored_params(self.step)

    def read(self, abstract: Params) -> Params:
        """See `Origin`."""
        restored = functools.partial(_checkpoints(self.folder).restore_some, abstract)
        return mean(map(restored, (*self.before, self.step)))

    def __str__(self) -> str:
        mean_of = f"the mean of {len(self.before) + 1} checkpoints to " if self.before else ""
        return f"{self.folder}, {mean_of}step {self.step}"


@dataclass(frozen=True)
class WarmStart:
    """The parameters to take from an `Origin`, such as another run's checkpoint.

    By their paths, `taken` are in origin and model, `new` only in the model or unusable (`why` has the
    reasons), `left` only in the origin.
    """

    origin: Origin
    taken: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]
    why: tuple[str, ...] = ()

    @classmethod
    def plan(
        cls,
        run: str | os.PathLike | Origin,
        abstract: Params,
        may_be_new: tuple[str, ...] | None,
        labels: Sequence[str] | None = None,
        config: RunConfig | None = None,
    ) -> "WarmStart":
        """Compares the parameters of a run, "runs/bert" or "runs/bert@200", or of another origin with the
        model's, `abstract`, without reading arrays.

        A head is taken if the origin has the same `labels` in the same order, otherwise it is new. `config`
        is compared with the origin's.

        Raises:
          UserError: the folder has no checkpoint; the model has an array that the checkpoint lacks, or has in
            another shape, and whose path has no part among `may_be_new` (None: all may be new), nor, if it is
            lacking, among `ADAPTERS`; the checkpoint has adapters that the model lacks, or the parameters
            compute another function with `config`, unless all may be new; or nothing is in both.
        """
        origin = Checkpoint.named(run) if isinstance(run, (str, os.PathLike)) else run
        folder, there = origin.name, origin.shapes()
        here, theirs = arrays(abstract), origin.labels
        keys = differences(config, origin.config) if config and origin.config else []
        because = f"; {_some([*map(str, keys)])}" if keys else ""
        relabelled = [
            path for path in here if path in there and LABELLED in path.split("/") and theirs != labels
        ]
        differing = [
            path
            for path in here
            if path in there and there[path][0] != here[path][0] and path not in relabelled
        ]
        shapes = {
            path: f"{path} is {list(there[path][0])} there and {list(here[path][0])} here"
            for path in differing
        }
        refused = [path for path in differing if not _among(path, may_be_new)]
        if refused:
            listed = _some([shapes[path] for path in refused])
            raise UserError(f"initialize_from: {folder} has other shapes: {listed}{because}")
        replaced = {*relabelled, *differing}
        new = tuple(path for path in here if path not in there or path in replaced)
        lacking = [
            path
            for path in new
            if path not in replaced and not _among(path, may_be_new) and not _among(path, ADAPTERS)
        ]
        taken = tuple(path for path in here if path not in new)
        if lacking or not taken:
            hint = " (initialize_strict=false lets it start again)" if taken else ""
            raise UserError(f"initialize_from: {folder} lacks {_some(lacking or list(new))}{hint}{because}")
        left = tuple(path for path in there if path not in here)
        adapters = [path for path in left if _among(path, ADAPTERS)]
        if adapters and may_be_new is not None:
            ranks = {there[path][0][-1] for path in adapters if ADAPTERS[0] in path.split("/")}
            layers = vars(origin.config)["model"].lora_layers if origin.config else "unknown"
            merge = "--mode=import merges them, " if folder.startswith(HUB) else ""
            raise UserError(
                f"initialize_from: {folder} has learned {_some(adapters)}, which would be lost; "
                f"model.lora_rank={max(ranks, default=0)} takes them where model.lora_layers says so "
                f"({layers} there), {merge}initialize_strict=false leaves them"
            )
        changing = [str(key) for key in keys if key.effect is None]
        if changing and may_be_new is not None:
            raise UserError(
                f"initialize_from: {_some(changing)}, with which the parameters of {folder} compute another "
                "function; leave it out, or initialize_strict=false allows it"
            )
        why = [f"{LABELLED} is new: its labels are {_named(theirs)} there and {_named(labels)} here"]
        explained = [key.explained() for key in keys if key.effect != ""]
        remarks = (*origin.remarks, *(why if relabelled else ()), *shapes.values(), *explained)
        return cls(origin, taken, new, left, remarks)

    def table(self) -> list[str]:
        """One line for each group of parameters, taken, new or left, and the reasons for new ones."""
        groups = [
            line
            for label, paths in (("taken", self.taken), ("new", self.new), ("left", self.left))
            for line in _grouped(label, paths)
        ]
        return [*groups, *(f"  {reason}" for reason in self.why)]

    def apply(self, params: Params) -> Params:
        """`params` with the taken ones from the origin, with the same sharding."""
        flat = traverse_util.flatten_dict(params, sep="/")
        abstract = {
            path: jax.ShapeDtypeStruct(flat[path].shape, flat[path].dtype, sharding=flat[path].sharding)
            for path in self.taken
        }
        restored = self.origin.read(traverse_util.unflatten_dict(abstract, sep="/"))
        return traverse_util.unflatten_dict(flat | traverse_util.flatten_dict(restored, sep="/"), sep="/")

    def into(self, state: State, begin: Callable[[Params], Any]) -> State:
        """A first state with the parameters of `apply`, from which the average begins too, and the optimizer:
        `begin` is its `init`, as some optimizers have the parameters in their initial state."""
        params = self.apply(state.params)
        average = jax.tree.map(jnp.copy, params) if state.ema is not None else None
        return replace(state, params=params, ema=average, opt_state=begin(params))


def mean(trees: Iterable[Params]) -> Params:
    """The mean of the parameters of several checkpoints, of which no more than two are in memory."""
    remaining = iter(trees)
    total, count = next(remaining), 1
    for params in remaining:
        total, count = jax.tree.map(jnp.add, total, params), count + 1
    return total if count == 1 else jax.tree.map(lambda leaf: leaf / count, total)


def _checkpoints(folder: Path) -> Checkpoints:
    paths = RunFolder(folder)
    if not paths.checkpoints.is_dir():
        hint = "--mode=import makes one of a model of transformers"
        raise UserError(
            f"initialize_from: {folder} has no checkpoints; expected the folder of a run ({hint})"
        )
    stored = _read(paths.config) or {}
    keep_best = stored.get("train", {}).get("keep_best", "")
    return Checkpoints(paths.checkpoints, keep_best=keep_best, write=False)


def _default_step(checkpoints: Checkpoints) -> Step:
    """The best checkpoint if the run keeps one, else the latest."""
    return "best" if checkpoints.keep_best else "latest"


def _read(path: Path) -> Any:
    check_run_file(path)
    return parse_json(path.read_bytes()) if path.exists() else None


def _among(path: str, names: tuple[str, ...] | None) -> bool:
    """Whether a part of the path is among the names (None: always)."""
    return names is None or not {*names}.isdisjoint(path.split("/"))


def _named(labels: Sequence[str] | None) -> str:
    return "none" if labels is None else _some([repr(label) for label in labels])


def _grouped(label: str, paths: tuple[str, ...]) -> list[str]:
    groups: dict[str, int] = {}
    for path in paths:
        group = "/".join(path.split("/")[:3])
        groups[group] = groups.get(group, 0) + 1
    return [
        f"  {label:5}  {group}" + (f" ({count} arrays)" if count > 1 else "")
        for group, count in groups.items()
    ]


def _some(items: list[str]) -> str:
    return ", ".join(items[:MAX_LISTED]) + (
        f" and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
    )
