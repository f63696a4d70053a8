"""Mixtures of several sources: rows in exact proportions, each source with epochs of its own."""

import copy
import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.data.cache.token_cache import TokenCache
from transformer.data.corpus import key_in_errors
from transformer.data.division import divided_line, tally_lines
from transformer.data.loader import DataLoader, HostBatch, Rows
from transformer.data.overlap import overlap_lines
from transformer.data.source_names import suggest_kind
from transformer.data.sources import SOURCES, Source
from transformer.data.text.interleaving import Interleaving, whole_weights
from transformer.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class MixedLoader(DataLoader):
    """Rows of several endless loaders, `parts`, in the proportions of `weights` (see `Interleaving`).

    A row of the mixture is the next one in the order of its part, so every part has epochs of its own. Arrays
    that not all parts have are left out; smaller ones than those of other parts are filled up with zeros.
    """

    parts: Mapping[str, DataLoader] = dataclasses.field()  # type: ignore[misc]
    weights: Sequence[float]

    def batch_at(self, step: int) -> HostBatch:
        """The needed rows of batch `step`."""
        needed = np.arange(self.batch_size) if self.needed is None else self.needed
        part_b, place_b = self._order(step * self.batch_size + needed)
        batch = {name: np.zeros((len(needed), *shape), kind) for name, (shape, kind) in self._arrays.items()}
        for number, part in enumerate(self.parts.values()):
            if len(here := np.flatnonzero(part_b == number)):
                rows = _at(part, place_b[here])
                for name, values in batch.items():
                    corner: Any = tuple(slice(size) for size in rows[name].shape[1:])
                    values[here, *corner] = rows[name]
        return batch

    @functools.cached_property
    def _order(self) -> Interleaving:
        return Interleaving(self.weights)

    @functools.cached_property
    def _arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Name -> the shape of a row and the type."""
        firsts = [_at(part, np.zeros(1, int)) for part in self.parts.values()]
        common = [name for name in firsts[0] if all(name in first for first in firsts)]
        shapes = {name: np.max([first[name].shape[1:] for first in firsts], axis=0) for name in common}
        return {name: (tuple(map(int, shapes[name])), firsts[0][name].dtype) for name in common}


def _at(loader: DataLoader, places: np.ndarray) -> HostBatch:
    """The rows at these places of the order of a loader."""
    return dataclasses.replace(loader, needed=places).batch_at(0)


@dataclasses.dataclass(frozen=True)
class PartsInTurn:
    """One pass over all `parts`, one after another, to evaluate each of them; `weights` are those of the
    mixture."""

    parts: Mapping[str, DataLoader]
    weights: Sequence[float]

    @property
    def rows(self) -> "CountedRows":
        """The rows of all parts, to count them."""
        return CountedRows([part.rows for part in self.parts.values()])

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def iterate(self, start: int = 0) -> Iterator[HostBatch]:
        """The batches from `start` on, prefetched."""
        for part in self.parts.values():
            yield from part.iterate(min(start, len(part)))
            start -= min(start, len(part))


class CountedRows(Rows):
    """The number of rows of several sources, and `why` if one of them is `WithoutBytes`."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows
        self.why = next((part.why for part in rows if part.why), "")

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def batch(self, rows: np.ndarray) -> HostBatch:
        """None: the loaders of the sources are asked for batches."""
        raise NotImplementedError


class Mixture:
    """The documents of several sources, by the key `sources`: source -> weight.

    Rows of training are in the proportions of the weights. Each source is divided, tokenised, packed and
    shuffled for itself; the tokenizer is trained on all training documents, each once.

    To be inherited from together with the class of the data of one source (see `mixture_of`).

    Raises:
      UserError: a source that is missing, unreadable, empty or smaller than a row.
    """

    config: Any
    tokenizer: Any
    folder: Any
    only = ""
    """The source of one part; "": all."""

    def __init__(self, config: Any, tokenizer: Any = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        self.weights = dict(sorted(config.sources.items()))  # in any order the same mixture
        super().__init__(config, tokenizer)  # type: ignore[call-arg]
        self.apart = False

    def parts(self, split: str) -> dict[str, Any]:
        """Name -> the data of each source of a split; {"": these} if it is of one."""
        if not self.mixes(split):
            return {"": self}
        parts = {}
        for name, source in zip(short_names([*self.weights]), self.weights, strict=True):
            parts[name] = part = copy.copy(self)
            part.only = source
        return parts

    def key(self, split: str) -> str:
        """The config key that names the sources of a split."""
        key = super().key(split)  # type: ignore[misc]
        return "sources" if key == "source" else key

    def location(self, split: str) -> str:
        """The source of a split, or all of them."""
        if self.key(split) != "sources":
            return super().location(split)  # type: ignore[misc]
        return self.only or ", ".join(self.weights)

    def mixes(self, split: str) -> bool:
        """Whether a split is of several sources: not with `validation_source`, nor of another source."""
        return not self.only and self.key(split) == "sources"

    def sources(self, split: str) -> Sequence[Source]:
        """The documents of a split of every source."""
        if not self.mixes(split):
            return super().sources(split)  # type: ignore[misc]
        return [source for part in self.parts(split).values() for source in part.sources(split)]

    def conditions(self, split: str) -> Sequence[Source]:
        """All documents of a split."""
        return self.sources(split)

    def contents(self) -> dict[str, dict[str, Any]]:
        """As of one source, with the number of each source, for their order is a part of the data."""
        if self.only:
            return super().contents()  # type: ignore[misc]
        numbered = enumerate(part.contents() for part in self.parts("train").values())
        return {
            f"sources[{number}]" if key == "sources" else key: content
            for number, contents in numbered
            for key, content in contents.items()
        }

    def rows(self, split: str, *arguments: Any) -> Any:
        """The rows of a split of one source, tokenised on first use."""
        if self.only and self.key(split) == "sources":
            count, length = len(self.cache(split).tokens), self.config.sequence_length
            if split == "train" and count <= length:
                raise UserError(
                    f"data.sources: {self.only}: {count:,} tokens to train on, but a row of "
                    f"data.sequence_length {length:,} needs {length + 1:,}"
                )
        return super().rows(split, *arguments)  # type: ignore[misc]

    def cache(self, split: str) -> TokenCache:
        """The tokens of a split of one source."""
        source = self.source(split)  # type: ignore[attr-defined]
        with key_in_errors("sources"):
            return TokenCache.of(source, self.tokenizer, self.folder)

    def loader(self, split: str, batch_size: int, *, seed: int = 0, **options: Any) -> Any:
        """Batches of the mixture in training (`repeat`), otherwise of each source in turn."""
        load = super().loader  # type: ignore[misc]
        if not self.mixes(split):
            return load(split, batch_size, seed=seed, **options)
        seeds = np.random.SeedSequence(seed).spawn(len(self.weights))
        parts = {
            name: part.loader(split, batch_size, seed=int(part_seed.generate_state(1)[0]), **options)
            for (name, part), part_seed in zip(self.parts(split).items(), seeds, strict=True)
        }
        weights = [*self.weights.values()]
        if not options.get("repeat"):
            return PartsInTurn(parts, weights)
        rows: Any = CountedRows([part.rows for part in parts.values()])  # `batch_at` asks the parts for them
        workers = self.config.workers
        return MixedLoader(rows, batch_size, parts=parts, weights=weights, workers=workers, **options)

    def text(self, split: str) -> Iterator[str]:
        """The text of a split in pieces, source by source."""
        return itertools.chain.from_iterable(source.texts() for source in self.sources(split))

    def inputs(self, split: str) -> Iterator[str]:
        """The model's input for each record of a split, source by source."""
        if not self.mixes(split):
            return super().inputs(split)  # type: ignore[misc]
        return itertools.chain.from_iterable(part.inputs(split) for part in self.parts(split).values())

    def division(self) -> list[str]:
        """Lines on the share and the size of every source, and on how sources without splits are split."""
        total, lines = sum(self.weights.values()), []
        for name, part in self.parts("train").items():
            share = self.weights[part.only] / total
            rows, tokens = len(part.rows("train")), len(part.cache("train").tokens)
            lines.append(f"{name}: {share:.1%} of the rows, from {rows:,} ({tokens:,} tokens) of {part.only}")
        undivided = any(SOURCES[source.partition(":")[0]].is_files for source in self.weights)
        lines += tally_lines(self.tallies("train", "validation"))  # type: ignore[attr-defined]
        if self.config.validation_source or not undivided:
            return [*lines, *overlap_lines(self)]
        return [*lines, *divided_line(None, "a source of files in data.sources"), *overlap_lines(self)]


@functools.cache
def mixture_of(kind: type) -> Any:
    """The class of a mixture of data of this kind."""
    return type(f"Mixed{kind.__name__}", (Mixture, kind), {})


def check_sources(config: Any) -> None:
    """Checks the sources and weights of a mixture; no file is opened.

    Raises:
      UserError: a single source, an unknown one or one given twice, another key `source` than the default, or
        a weight that is not a positive number.
    """
    sources = config.sources
    (default,) = (field.default for field in dataclasses.fields(config) if field.name == "source")
    if config.source != default:
        raise UserError(f"source: {config.source!r} together with sources; leave it at {default!r}")
    if len(sources) == 1:
        raise UserError(f"sources: only {next(iter(sources))!r}; give several, or one as source")
    known: dict[str, str] = {}
    for source, weight in sources.items():
        kind, colon, place = source.partition(":")
        if isinstance(weight, Mapping):
            raise UserError(
                f"sources.{source}: a dot divides keys; give all sources as --config.data.sources='{{...}}'"
            )
        if kind not in SOURCES:
            raise UserError(f"sources: {source!r}; {suggest_kind(source, SOURCES)}")
        if type(weight) not in (int, float) or not (weight > 0 and math.isfinite(weight)):
            raise UserError(f"sources: {source!r} has the weight {weight!r}; expected a positive number")
        place = os.path.realpath(os.path.expanduser(place)) if SOURCES[kind].is_files else place
        if (same := known.setdefault(kind + colon + place, source)) != source:
            raise UserError(f"sources: {same!r} and {source!r} are the same source; give it once")
    try:
        whole_weights([*sources.values()])
    except UserError as error:
        raise UserError(f"sources: {error}") from None


def short_names(sources: Sequence[str]) -> list[str]:
    """A name for each source, for metrics: the last words of its place without suffixes, as many as make all
    names different; ["stdlib", "text:/my/books/*.txt"] -> ["stdlib", "books"]."""
    words = []
    for source in sources:
        kind, _, place = source.partition(":")
        folder, _, file = place.rpartition("/")
        words.append([kind, *re.findall(r"\w+", folder), *re.findall(r"\w+", file.partition(".")[0])])
    for count in range(1, max(map(len, words)) + 1):
        names = ["_".join(parts[-count:]) for parts in words]
        if len({*names}) == len(names):
            return names
    return [f"{name}_{number}" for number, name in enumerate(names, 1)]
