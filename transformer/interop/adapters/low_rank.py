"""Low-rank changes of kernels, scale B A: which matrices of PEFT are which parameters here.

PEFT has A (r, inputs) and B (outputs, r), also where a kernel has its inputs first (GPT-2's Conv1D); here
they are `lora_down` and `lora_up` (see `transformer.models.transforms.lora`). A kernel of theirs that is
several of ours, such as GPT-2's c_attn, has one A and one B there and a pair for each part here:

- parts with the same A are that A, and their B below each other;
- others are their A below each other, and B is block-diagonal: r is the sum of the parts'.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from transformer.interop.tensor_rules import Place

RANK = ("r",)
"""The axis of the rank."""

Pair = tuple[np.ndarray, np.ndarray]
"""A (r, inputs) and B (outputs, r)."""


@dataclass(frozen=True)
class LowRank:
    """The change scale B A, (outputs, inputs), of a kernel."""

    a: np.ndarray
    b: np.ndarray
    scale: Fraction

    def applied(self, kernel: np.ndarray, place: Place) -> np.ndarray:
        """Their kernel at this place with the change, in float32."""
        change = (self.b @ self.a) * np.float32(self.scale)
        return kernel.astype(np.float32) + (change if inputs_axis(place) else change.T)


def half_paths(kernel: str) -> tuple[str, str]:
    """The paths of A and B of a kernel of ours."""
    stem = kernel.removesuffix("/kernel")
    return f"{stem}/lora_down/kernel", f"{stem}/lora_up/kernel"


def is_linear(place: Place) -> bool:
    """Whether a tensor is the kernel of a linear layer, not a table or one of many experts."""
    plain = len(place.left) == 2 and len(place.index) <= 1 and not place.reverse
    return plain and all(path.endswith("/kernel") for path in place.paths)


def inputs_axis(place: Place) -> int:
    """The axis of their kernel that has the inputs, which are first in ours."""
    first = place.right[place.numbered][0]
    return next(i for i, group in enumerate(place.left) if first in group)


def halves(place: Place, part: int, rank: int) -> list[Place]:
    """Where A and B of the kernel `paths[part]` are."""
    place, part = place.alone(part)
    several, axis = place.numbered, inputs_axis(place)
    inputs, outputs = place.left[axis], place.left[1 - axis][several:]  # parts are the outermost axis
    ours, sizes = place.right[several:], {**place.sizes, "r": rank}
    count = sum({*group} <= {*inputs} for group in ours)
    axes = ((RANK, inputs), (*ours[:count], RANK)), ((outputs, RANK), (RANK, *ours[count:]))
    pair = []
    for path, (left, right) in zip(half_paths(place.paths[part]), axes, strict=True):
        shape, padded = (
            tuple(math.prod(sizes[a] for a in group) for group in side) for side in (left, right)
        )
        name = f"{path}{[*place.index]}"
        pair.append(Place(name, shape, (path,), place.index, left, right, sizes, padded))
    return pair


def fused(parts: Sequence[Pair | None], outputs: int, rows: Sequence[int] = ()) -> Pair | None:
    """A and B of a kernel of that many outputs from those of its parts, which have `rows` of them, or () all
    as many; None: a part, or all, have none. Of one pair the ranks after the last that is not zero in A and B
    are left out."""
    pairs = [pair for pair in parts if pair and any(x.any() for x in pair)]
    if not pairs:
        return None
    a, b = pairs[0][0], np.concatenate([pair[1] for pair in parts if pair])
    if len(b) == outputs and all(pair and np.array_equal(pair[0], a) for pair in parts):
        rank = 1 + np.flatnonzero(a.any(1) | b.any(0)).max()
        return a[:rank], b[:, :rank]
    a = np.concatenate([pair[0] for pair in parts if pair])
    b, start = np.zeros((outputs, len(a)), a.dtype), 0
    for block, pair in zip(np.split(b, cuts(rows, len(parts))), parts, strict=True):
        if pair:
            end = start + len(pair[0])
            block[:, start:end] = pair[1]
            start = end
    return a, b


def cuts(rows: Sequence[int], parts: int) -> Any:
    """Where `np.split` cuts outputs of that many parts."""
    return np.cumsum(rows)[:-1] if rows else parts


def parted(adapters: Sequence[tuple[Place, LowRank]]) -> dict[tuple[str, tuple[int, ...]], LowRank]:
    """(kernel of ours, layer) -> its adapter, from those of theirs; the reverse of `fused`."""
    parts = {}
    for paths in {place.paths: None for place, _ in adapters}:
        layers = [(place, low) for place, low in adapters if place.paths == paths]
        cut = cuts(layers[0][0].rows, len(paths))
        ordered = [place.by_path(low.b) for place, low in layers]
        owned = _owned(ordered, len(paths), cut)
        for (place, low), whole in zip(layers, ordered, strict=True):
            for part, own in owned.items():
                b = np.split(whole, cut)[part][:, own]
                parts[paths[part], place.index] = LowRank(low.a[own], b, low.scale)
    return parts


def _owned(layers: Sequence[np.ndarray], parts: int, cut: Any) -> dict[int, slice]:
    """Part -> its ranks: own ones where B is block-diagonal in all layers, otherwise all."""
    shared = dict.fromkeys(range(parts), slice(None))
    if parts == 1 or len({b.shape for b in layers}) > 1:
        return shared
    b_lor = np.stack(layers)
    blocks = np.split(b_lor, cut, axis=1)
    owners = [part for part, block in enumerate(blocks) if block.any()]
    width, rest = divmod(b_lor.shape[-1], max(len(owners), 1))
    own = {part: slice(i * width, (i + 1) * width) for i, part in enumerate(owners)}
    inside = sum(np.count_nonzero(blocks[part][:, :, ranks]) for part, ranks in own.items())
    return own if own and not rest and inside == np.count_nonzero(b_lor) else shared
