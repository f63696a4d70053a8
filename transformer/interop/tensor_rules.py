"""Rules: which tensor of another library is which parameter, and how their axes correspond.

A rule is one line, `Rule("blocks/attention/query/kernel", "model.layers.{n}.self_attn.q_proj.weight",
"(h k) d -> d h k")`: our path, their name, and the axes, theirs -> ours; both directions follow. Where their
name has `{n}`, our parameter is stacked over layers on its first axis, with `{e}` too over experts on the
next; the pattern leaves these out. A rule with several of our paths is for a fused tensor: the first axis of
ours numbers the paths, as in "d (c h k) -> c d h k"; or with `in_turn` the paths, maybe of several sizes, lie
one after another on the first axis of theirs, each with these axes; with `turns` t in each of t equal parts
of it. The axis `v` is the vocabulary, padded in ours (`vocab_multiple`). Of several axes that are one in ours
all but one have their sizes in `sizes`.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transformer.errors import UserError

VOCABULARY = "v"
"""The axis of a pattern whose size is the vocabulary's, without padding in theirs."""

Slices = tuple[slice, ...]
"""A part of an array, a slice of each axis."""


@dataclass(frozen=True)
class Rule:
    """A tensor of theirs, the parameter or parameters of ours that it is, and its axes, theirs -> ours; "":
    the same.

    `layers` are the numbers `{n}` of the layers that our parameter has, without it all. The axis `reverse` of
    the pattern has the opposite order in ours; `in_turn` and `turns`: see above.
    """

    ours: str | tuple[str, ...]
    theirs: str
    axes: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    layers: tuple[int, ...] = ()
    reverse: str = ""
    in_turn: bool = False
    turns: int = 1

    @property
    def paths(self) -> tuple[str, ...]:
        """Our parameters."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Place:
    """One tensor of theirs under a rule: in the layer, and for one of an expert the expert, `index` of the
    parameters `paths`, or with () all of them.

    `shape` is that of their tensor, `padded` those of our parameters (of one layer).
    """

    name: str
    shape: tuple[int, ...]
    paths: tuple[str, ...]
    index: tuple[int, ...]
    left: tuple[tuple[str, ...], ...]
    right: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]
    padded: tuple[int, ...]
    reverse: str = ""
    turns: int = 1

    @property
    def numbered(self) -> bool:
        """Whether the first axis of ours numbers the paths."""
        return len(self.paths) > 1

    @property
    def flipped(self) -> tuple[int, ...]:
        """The axis of our parameters that has the opposite order, or ()."""
        return tuple(i for i, group in enumerate(self.right[self.numbered :]) if group == (self.reverse,))

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of theirs that each path has; (): they are not one after another."""
        return ()

    def by_path(self, rows: np.ndarray) -> np.ndarray:
        """Rows of theirs in the order of the paths."""
        return rows

    def by_turn(self, rows: np.ndarray) -> np.ndarray:
        """The reverse of `by_path`."""
        return rows

    def alone(self, part: int) -> tuple["Place", int]:
        """The place that has the parameter `paths[part]`, and its number there."""
        return self, part

    def ours(self, theirs: np.ndarray, part: int, piece: Slices | None = None) -> np.ndarray:
        """The parameter `paths[part]` of this layer, or a piece of it, from their tensor. Of a tensor that is
        mapped from a file little more than the piece is read. Vocabulary padding is zero."""
        x = self._permuted(theirs, self.left, self.right)
        x = x[part] if self.numbered else x
        x = np.flip(x, self.flipped)
        if piece is None:
            piece = tuple(slice(0, size) for size in self.padded)
        # Vocabulary padding, which theirs does not have, is left out of what is read.
        array = x[tuple(slice(s.start, min(s.stop, size)) for s, size in zip(piece, x.shape, strict=True))]
        lacking = [s.stop - s.start - size for s, size in zip(piece, array.shape, strict=True)]
        return np.pad(array, [(0, rows) for rows in lacking]) if any(lacking) else array

    def theirs(self, ours: Iterable[np.ndarray]) -> np.ndarray:
        """Their tensor from our parameters of this layer, in the order of `paths`."""
        axes = self.right[1:] if len(self.paths) > 1 else self.right
        sizes = [math.prod(self.sizes[axis] for axis in group) for group in axes]
        cut = [x[tuple(slice(0, size) for size in sizes)] for x in ours]
        cut = [np.flip(x, self.flipped) for x in cut]
        return self._permuted(np.stack(cut) if len(self.paths) > 1 else cut[0], self.right, self.left)

    def _permuted(self, x: np.ndarray, left: tuple, right: tuple) -> np.ndarray:
        before, after = ([axis for group in side for axis in group if axis != "1"] for side in (left, right))
        split = x.reshape([self.sizes[axis] for axis in before]).transpose([before.index(a) for a in after])
        return split.reshape([math.prod(self.sizes[axis] for axis in group) for group in right])


@dataclass(frozen=True)
class Row(Place):
    """Several places, one after another on the first axis of one tensor, or of each of its `turns` parts."""

    parts: tuple[Place, ...] = ()
    numbered = False

    @classmethod
    def of(cls, parts: Sequence[Place]) -> "Row":
        """The row of these places, each of one parameter."""
        values = {item.name: getattr(parts[0], item.name) for item in dataclasses.fields(Place)}
        shape = sum(part.shape[0] for part in parts), *parts[0].shape[1:]
        paths = tuple(path for part in parts for path in part.paths)
        return cls(**values | {"shape": shape, "paths": paths}, parts=tuple(parts))

    @property
    def rows(self) -> tuple[int, ...]:
        """See `Place`."""
        return tuple(part.shape[0] for part in self.parts)

    def alone(self, part: int) -> tuple[Place, int]:
        """See `Place`."""
        return self.parts[part], 0

    def ours(self, theirs: np.ndarray, part: int, piece: Slices | None = None) -> np.ndarray:
        """See `Place`."""
        start, place = sum(self.rows[:part]) // self.turns, self.parts[part]
        own = self._in_turns(theirs)[:, start : start + place.shape[0] // self.turns]
        return place.ours(own.reshape(place.shape), 0, piece)

    def theirs(self, ours: Iterable[np.ndarray]) -> np.ndarray:
        """See `Place`."""
        return self.by_turn(
            np.concatenate([part.theirs([x]) for part, x in zip(self.parts, ours, strict=True)])
        )

    def by_path(self, rows: np.ndarray) -> np.ndarray:
        """See `Place`."""
        parts = np.split(self._in_turns(rows), np.cumsum(self.rows)[:-1] // self.turns, axis=1)
        return np.concatenate([part.reshape(-1, *rows.shape[1:]) for part in parts])

    def by_turn(self, rows: np.ndarray) -> np.ndarray:
        """See `Place`."""
        parts = np.split(rows, np.cumsum(self.rows)[:-1])
        return np.concatenate([self._in_turns(part) for part in parts], axis=1).reshape(rows.shape)

    def _in_turns(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(self.turns, -1, *rows.shape[1:])


def places(
    rules: Iterable[Rule], shapes: Mapping[str, tuple[int, ...]], vocab_size: int = 0
) -> dict[str, Place]:
    """Their name -> place of every tensor that the rules name, for our parameters, path -> shape.

    Raises:
      UserError: a parameter that no rule names, or one that the model does not have.
    """
    by_name: dict[str, Place] = {}
    by_path: dict[str, str] = {}
    for rule in rules:
        for path in rule.paths:
            if path not in shapes:
                raise UserError(f"{rule.theirs}: this model has no parameter {path}")
            assert path not in by_path, f"{path}: a second rule"
            by_path[path] = rule.theirs
        by_name |= {place.name: place for place in places_of(rule, shapes, vocab_size)}
    if lacking := [path for path in shapes if path not in by_path]:
        raise UserError(f"{lacking[0]}: no tensor of this family is this parameter")
    return by_name


def places_of(rule: Rule, shapes: Mapping[str, tuple[int, ...]], vocab_size: int) -> Iterable[Place]:
    """The places of one rule."""
    if not rule.in_turn:
        return _of_rule(rule, shapes[rule.paths[0]], vocab_size)
    rules = [dataclasses.replace(rule, ours=path, in_turn=False) for path in rule.paths]
    parts = [_of_rule(own, shapes[own.paths[0]], vocab_size) for own in rules]
    return map(Row.of, zip(*parts, strict=True))


def _of_rule(rule: Rule, shape: tuple[int, ...], vocab_size: int) -> Iterator[Place]:
    stacked = [letter for letter in ("{n}", "{e}") if letter in rule.theirs]
    own = shape[len(stacked) :]
    pattern = rule.axes or " ".join(letters := [f"a{i}" for i in range(len(own))]) + " -> " + " ".join(
        letters
    )
    left, right = map(_groups, pattern.split("->"))
    sizes = {"1": 1} | dict(rule.sizes)
    if len(rule.paths) > 1:
        sizes[right[0][0]] = len(rule.paths)
    groups = right[1:] if len(rule.paths) > 1 else right
    assert len(groups) == len(own), f"{rule.theirs}: {pattern} for our shape {own}"
    for group, size in zip(groups, own, strict=True):
        unknown = [axis for axis in group if axis not in sizes]
        assert len(unknown) <= 1, f"{rule.theirs}: the sizes of {unknown} are not known"
        if unknown:
            is_vocabulary = unknown[0] == VOCABULARY and vocab_size
            sizes[unknown[0]] = (
                vocab_size if is_vocabulary else size // math.prod(sizes[a] for a in group if a in sizes)
            )
    theirs = tuple(math.prod(sizes[axis] for axis in group) for group in left)
    for index in np.ndindex(*shape[: len(stacked)]):
        name = rule.theirs
        for letter, number in zip(stacked, index, strict=True):
            in_layers = letter == "{n}" and rule.layers
            name = name.replace(letter, str(rule.layers[number] if in_layers else number))
        yield Place(name, theirs, rule.paths, index, left, right, sizes, own, rule.reverse, rule.turns)


def _groups(side: str) -> tuple[tuple[str, ...], ...]:
    """ "(h k) d" -> (("h", "k"), ("d",)); "1" is an axis of size 1, which the other side may lack."""
    return tuple(tuple(group.strip("()").split()) for group in re.findall(r"\([^)]*\)|\S+", side))


def compare(
    stored: Mapping[str, Any], expected: Mapping[str, Place], ignored: Sequence[str], where: object
) -> None:
    """Checks that the tensors of a model, name -> anything with a `shape`, are those of the rules, besides
    names that match one of the regular expressions `ignored`.

    Raises:
      UserError: a tensor is missing, unknown, or of another shape.
    """
    if lacking := [name for name in expected if name not in stored]:
        raise UserError(f"{where}: it lacks {_some(lacking)}")
    extra = [name for name in stored if name not in expected and not _any(ignored, name)]
    if extra:
        raise UserError(f"{where}: it has {_some(extra)}, which this family does not have")
    for name, place in expected.items():
        if tuple(stored[name].shape) != place.shape:
            shapes = f"{list(stored[name].shape)}; config.json makes it {list(place.shape)}"
            raise UserError(f"{where}: {name} has the shape {shapes}")


def _any(patterns: Sequence[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _some(names: list[str], limit: int = 4) -> str:
    listed = ", ".join(name[:120] for name in names[:limit])
    return listed + (f" and {len(names) - limit} more" if len(names) > limit else "")
