"""The base class of the data of a run: sources, tokenizer, and batches of rows."""

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tqdm import tqdm

from transformer.config import Bounded, Fraction, Nonnegative, Place
from transformer.data.cache.disk_cache import build_once, data_folder, digest, load_values
from transformer.data.cache.token_cache import BAR, TokenCache
from transformer.data.division import divided_line, of_all_splits, tally_lines
from transformer.data.loader import DataLoader, Rows
from transformer.data.overlap import Hashed, hashed, overlap_lines
from transformer.data.source_names import suggest_kind
from transformer.data.sources import SOURCES, Source, open_source
from transformer.data.sources.base import SPLITS, split_and_source
from transformer.data.tokenization.tokenizer_kinds import TokenizerKind
from transformer.data.tokenization.tokenizers import TOKENIZERS, Tokenizer
from transformer.errors import UnknownMember, UserError


def check_size(config: Any) -> None:
    """Raises a `UserError` if the tokenizer of a data group cannot have as few tokens as its `vocab_size`."""
    kind = TOKENIZERS.get(config.tokenizer)
    if kind and config.vocab_size < kind.least_size:
        needs = f"{config.tokenizer} needs at least {kind.least_size}: {kind.needs}"
        raise UserError(f"vocab_size: {config.vocab_size}; {needs}, and the end")


def read_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a file.

    Raises:
      UserError: there is no such file, or it is not that of a tokenizer.
    """
    if not Path(name).expanduser().is_file():
        kinds = ", ".join(TOKENIZERS)
        raise UserError(f"data.tokenizer: {name!r} is not a file; expected one, or one of {kinds}")
    with key_in_errors("tokenizer"):
        return Tokenizer.load(name)


@dataclass(frozen=True)
class CorpusConfig(Bounded):
    """The keys that every `data` group has."""

    source: Place  # see SOURCES in transformer/data/sources: text:GLOB, jsonl:GLOB, tfds:NAME ...
    validation_source: Place = ""  # another source to validate on; "": a split of `source`
    tokenizer: Place = "bpe"  # bytes, characters, bpe or words (of the training text), or a tokenizer.json
    vocab_size: int = 4096  # vocabulary size of bpe, with the 256 bytes; most words of words
    lowercase: bool = False  # the tokenizer reads all letters as lower-case, and so writes them
    strip_accents: bool = False  # the tokenizer leaves out accents and other combining marks
    # records equal in these fields go to one split; "": prompt, source, premise, context or text; "place":
    # lines are divided by their order
    split_by: str = ""
    overlap: Fraction = 0.0  # most of validation that may also be in training, as a share of its records
    cache_dir: Place = ""  # folder of prepared and tokenised data; "": the user's cache
    workers: Nonnegative = 1  # threads that prepare batches ahead; 0: none

    def _check_source(self, key: str = "source") -> None:
        if (value := getattr(self, key)).partition(":")[0] not in SOURCES:
            raise UnknownMember(f"{key}: {value!r}; {suggest_kind(value, SOURCES)}")

    checks: ClassVar = {
        "source": _check_source,
        "validation_source": functools.partial(_check_source, key="validation_source"),
        "tokenizer": check_size,
        "vocab_size": check_size,
    }

    def idle(self) -> dict[str, str]:
        """See `Bounded`."""
        kind, why = TOKENIZERS.get(self.tokenizer), f"with tokenizer {self.tokenizer!r}"
        unread = ([] if kind.least_size else ["vocab_size"]) if kind else self._decided_by_file
        always = {"lowercase": f"{why}, which is always in lower case"} if self.tokenizer == "words" else {}
        return super().idle() | dict.fromkeys(unread, why) | always

    @property
    def _decided_by_file(self) -> list[str]:
        """The keys that a `tokenizer.json` leaves without effect; none if there is no such file, which is the
        mistake then."""
        there = Path(self.tokenizer).expanduser().is_file()
        return ["vocab_size", "lowercase", "strip_accents"] if there else []


def without_lossy_bytes(rows: Any, caches: Sequence[TokenCache], split: str) -> Any:
    """The rows of the texts in `caches`, or `WithoutBytes` if tokenization loses something of the texts."""
    if not any(cache.lost[0] for cache in caches):
        return rows
    from transformer.data.lossy_bytes import WithoutBytes

    return WithoutBytes(rows, caches, split)


class SplitData(ABC):
    """The splits of a config's `source` and `validation_source`.

    A split is "train", "validation" or "test", or one of another source than the config's, "test of SOURCE".
    """

    config: Any
    apart = False
    """Whether training and validation are known to share nothing."""
    tokenizer: Any = None
    special_tokens: Any = None
    """The `SpecialTokens` of an encoder."""
    labels: Sequence[str] = ()

    def blank(self) -> dict[str, np.ndarray] | None:
        """A row of padding, stacked, if its shapes are known without data."""
        return None

    @abstractmethod
    def sources(self, split: str) -> Sequence[Any]:
        """All that a split is read from, each with its `content`."""

    def key(self, split: str) -> str:
        """The config key that names the source of a split; "" for a split of another source."""
        name, source = split_and_source(split)
        if source:
            return ""
        return "validation_source" if name != "train" and self.config.validation_source else "source"

    def location(self, split: str) -> str:
        """The source of a split."""
        return split_and_source(split)[1] or getattr(self.config, self.key(split))

    def tallies(self, *splits: str) -> dict[str, dict[str, int]]:
        """Source -> its tally, of those of these splits that leave something out."""
        sources = [source for split in splits for source in self.sources(split)]
        return {of_all_splits(source.name): {**source.tally} for source in sources if len(source.tally) > 1}

    def contents(self) -> dict[str, dict[str, Any]]:
        """Config key -> name -> content of the data that training reads, as in JSON."""
        contents: dict[str, dict[str, Any]] = {}
        for split in ("train", "validation"):
            for source in self.sources(split):
                contents.setdefault(self.key(split), {}).update(source.content)
        return contents


class Corpus(SplitData):
    """Tokenizer, rows and loaders of a config, made on first use and cached in the data folder.

    `kinds` are the supported sources, `lines` the one for a file with one example per line.

    Raises:
      UserError: the source or the tokenizer is missing, unreadable or empty.
    """

    kinds: Mapping[str, Any] = SOURCES
    lines: str = ""

    def __init__(self, config: Any, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        self.config = config
        self.folder = data_folder(config.cache_dir)
        self.apart = not config.validation_source and SOURCES[config.source.partition(":")[0]].are_apart
        self.tokenizer = tokenizer or self._make_tokenizer()

    def kept(self) -> dict[str, Any]:
        """The parts of the data that a run folder stores, by the names of the arguments of `__init__`."""
        return {"tokenizer": self.tokenizer}

    @abstractmethod
    def sources(self, split: str) -> Sequence[Source]:
        """All sources of text of a split; the tokenizer is trained on those of the training split."""

    @property
    @abstractmethod
    def reads(self) -> Sequence[str]:
        """The fields of a record that a model reads; records equal in them are in one split."""

    def asked(self, split: str) -> Sequence[Source]:
        """The inputs that a model answers: their fields of all records, also those without a target; null is
        the empty text."""
        return [self.open(split, field, fields=self.reads, optional=self.reads) for field in self.reads]

    def conditions(self, split: str) -> Sequence[Source]:
        """The texts of a split by which those that are in training too are counted."""
        return self.sources(split)[:1]

    def hashed(self, split: str) -> Hashed:
        """See `transformer.data.overlap`."""
        with key_in_errors(self.key(split)):
            return hashed(self.conditions(split), self.folder)

    def inputs(self, split: str) -> Iterator[str]:
        """The model's input for each record of a split, without the target; several texts are separated by a
        tab."""
        sources = self.asked(split)
        for index in range(len(sources[0])):
            first, *more = (source.text(index) for source in sources)
            yield "\t".join([first.replace("\t", " "), *more] if more else [first])

    @abstractmethod
    def rows(self, split: str) -> Rows:
        """The rows of a split, tokenised on first use."""

    def loader(self, split: str, batch_size: int, **options) -> DataLoader:
        """Batches of a split; `options` are those of `DataLoader`."""
        return DataLoader(self.rows(split), batch_size, workers=self.config.workers, **options)

    def fields(self, split: str) -> tuple[str, ...]:
        """All fields that are read of a split's records, if there are several."""
        return ()

    def open(self, split: str, field: str, **options: Any) -> Source:
        """The source of one field of a split's records; `options` are those of `open_source`. With
        `validation_source` all of `source` is training data, and validation and test are from the other.
        "test of SOURCE" is the test split of another source, or all of a source without splits."""
        c, (name, source) = self.config, split_and_source(split)
        by = [part.strip() for part in c.split_by.split(",") if part.strip()]
        kwargs: dict[str, Any] = {"fields": self.fields(split), "reads": self.reads, "split_by": by} | options
        kwargs |= {"divide": not c.validation_source and not source, "cache_dir": c.cache_dir}
        with key_in_errors(self.key(split)):
            return open_source(self.location(split), name, field=field, **kwargs)

    def division(self) -> list[str]:
        """Lines on how a source without splits is split, on what is left out of files, and on what training
        and validation share."""
        return [] if self.apart else [*self._division_of_files(), *overlap_lines(self)]

    def _division_of_files(self) -> list[str]:
        left_out = tally_lines(self.tallies("train", "validation"))
        kind = self.config.source.partition(":")[0]
        if self.config.validation_source or not SOURCES[kind].is_files:
            return left_out
        counts = [self._count(split) for split in SPLITS] if kind != "text" else None
        return divided_line(counts) + left_out

    def _count(self, split: str) -> int:
        """The number of records of a split, cached because files must be read to count."""
        source = self.sources(split)[0]

        def build(new: Path) -> None:
            (new / "records").write_text(str(len(source)))

        folder = build_once(self.folder / "counts" / digest(source.identity), build)
        return int(load_values(folder / "records"))

    def _make_tokenizer(self) -> Tokenizer:
        kind = TOKENIZERS.get(self.config.tokenizer)
        if kind is None:
            return read_tokenizer(self.config.tokenizer)
        if kind.learns:
            return self._learn_tokenizer(kind)
        return Tokenizer.train(self.config.tokenizer, (), 0, **self._normalization)

    @property
    def _normalization(self) -> dict[str, bool]:
        return {"lowercase": self.config.lowercase, "strip_accents": self.config.strip_accents}

    def _learn_tokenizer(self, kind: TokenizerKind) -> Tokenizer:
        name, size, sources = self.config.tokenizer, self.config.vocab_size, self.sources("train")
        identities, changes = [source.identity for source in sources], self._normalization
        # The names of those that are on, so that tokenizers cached without any keep their keys.
        more = [*filter(changes.get, changes), *filter(None, [kind.code])]
        key = digest(identities, name, size if kind.least_size else 0, *more)

        def build(new: Path) -> None:
            texts = itertools.chain.from_iterable(source.texts() for source in sources)
            bar = tqdm(texts, f"learning {name} from {sources[0].name}", unit=" pieces", **BAR)
            Tokenizer.train(name, bar, size, **changes).save(new / "tokenizer.json")

        return Tokenizer.load(build_once(self.folder / "tokenizers" / key, build) / "tokenizer.json")


@contextmanager
def key_in_errors(key: str) -> Iterator[None]:
    """Prefixes errors with the key of the config."""
    try:
        yield
    except UserError as error:
        raise UserError(f"data.{key}: {error}" if key else str(error)) from error.__cause__
