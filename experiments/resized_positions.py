"""Learned positions of images for a warm start at another resolution."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from transformer.models.vision import resized_positions
from transformer.training.experiment import Params

TABLE = "trunk/position/table"


@dataclass(frozen=True)
class ResizedPositions:
    """An `Origin` of an image model, with its learned positions for another grid of patches; see
    `resized_positions`."""

    origin: Any
    before: tuple[int, int]
    after: tuple[int, int]
    rows: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.origin, name)

    def __str__(self) -> str:
        return str(self.origin)

    def shapes(self) -> dict[str, tuple]:
        """See `Origin`."""
        found = self.origin.shapes()
        (_, width), dtype = found[TABLE]
        return found | {TABLE: ((self.rows, width), dtype)}

    def read(self, wanted: Params) -> Params:
        """See `Origin`."""
        flat = traverse_util.flatten_dict(wanted, sep="/")
        if (target := flat.get(TABLE)) is None:
            return self.origin.read(wanted)
        shape, _ = self.origin.shapes()[TABLE]
        stored = jax.ShapeDtypeStruct(shape, target.dtype, sharding=_whole(target.sharding))
        found = self.origin.read(traverse_util.unflatten_dict(flat | {TABLE: stored}, sep="/"))
        flat = traverse_util.flatten_dict(found, sep="/")
        resize = functools.partial(resized_positions, before=self.before, after=self.after, rows=self.rows)
        flat[TABLE] = jax.jit(resize, out_shardings=target.sharding)(flat[TABLE])
        return traverse_util.unflatten_dict(flat, sep="/")


def _whole(sharding: Any) -> Any:
    """The sharding of an array of another shape that is whole on each of the same devices."""
    named = isinstance(sharding, NamedSharding)
    return NamedSharding(sharding.mesh, PartitionSpec()) if named else sharding
