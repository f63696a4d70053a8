"""Tokenizers: bytes, characters, byte-level BPE, words, or any other `tokenizer.json`."""

import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import models

from transformer.data.cache.disk_cache import digest
from transformer.data.tokenization.closed_vocabulary import ClosedVocabulary
from transformer.data.tokenization.token_names import END, UNKNOWN
from transformer.data.tokenization.tokenizer_formats import other_format
from transformer.data.tokenization.tokenizer_kinds import TOKENIZERS, train_normalized
from transformer.data.tokenization.tokenizer_settings import (
    KEPT,
    ROLES,
    SETTINGS,
    TEMPLATE,
    settings_beside,
    special_in,
)
from transformer.errors import UserError, first_line
from transformer.safe_files import replace

ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""Names of the end-of-text token in other tokenizers, in order of preference."""


NONE_NAMED: Mapping[str, str] = MappingProxyType({})
"""No names of special tokens."""

RARE = "\ua66e"
"""A letter that hardly any vocabulary has: U+A66E, of one Slavonic manuscript."""

TARGETS = "target_tokenizer.json"
"""A file beside a `tokenizer.json` that then encodes sources alone: the tokenizer of targets."""


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer in a `tokenizer.json` as one that encodes a text always alike (see `whole`); raises
    `UserError` if it cannot be read."""
    try:
        return whole(tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8-sig")), str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # the library raises nothing more precise
        problem = other_format(path) or f"not a tokenizer.json ({first_line(error)})"
        raise UserError(f"{path}: {problem}") from None


def whole(backend: tokenizers.Tokenizer, name: str) -> Any:
    """The tokenizer of this name, for messages, without the dropout that it was trained with; of a model
    without an unknown token a `ClosedVocabulary`."""
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None
    try:
        backend.model.tokenize(RARE)
    except Exception:  # the library raises nothing more precise
        return ClosedVocabulary(backend, name)
    return backend


class Tokenizer:
    """A `tokenizer.json` with special tokens: `bos_id` before every document, `eos_id` after it, `pad_id`.

    They are one token, unless `special` names others. The text of a special token is encoded as plain text,
    so that no document can contain `eos_id`. `targets` is the tokenizer of the targets of pairs, with ids of
    the same vocabulary: the tokenizer itself, unless another is given.
    """

    def __init__(
        self, backend: Any, special: Mapping[str, str] = NONE_NAMED, targets: "Tokenizer | None" = None
    ) -> None:
        """Wraps a tokenizer of the `tokenizers` library. `special` are names of special tokens by their role,
        a key of `ROLES`, and values of `KEPT`; without an end-of-text token one of `ENDS` is taken, or
        `<|endoftext|>` is added."""
        end = special.get("eos_token") or next(filter(backend.get_vocab().__contains__, ENDS), END)
        names = {role: special.get(role) or end for role in ROLES}
        backend.add_special_tokens(sorted({*names.values()}))
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # encode them as plain text
        self.backend, self.special = backend, {key: special[key] for key in ROLES if key in special}
        self.targets = targets or self
        self.extras = {key: special[key] for key in KEPT if key in special}
        self.folder: Path | None = None  # where it is from, for messages
        self.bos_id, self.eos_id, self.pad_id = (backend.get_vocab()[names[role]] for role in ROLES)

    @classmethod
    def train(
        cls, kind: str, texts: Iterable[str] = (), vocab_size: int = 0, **normalization: bool
    ) -> "Tokenizer":
        """Trains a tokenizer of one of the kinds of `TOKENIZERS` on text given in pieces; `normalization` are
        the arguments of `text_normalizer`, and become a part of the tokenizer.

        Raises:
          UserError: an unknown kind.
        """
        if kind not in TOKENIZERS:
            raise UserError(f"{kind!r}: unknown tokenizer; expected a file or one of {', '.join(TOKENIZERS)}")
        if any(normalization.values()):
            return cls(train_normalized(TOKENIZERS[kind], texts, vocab_size, **normalization))
        return cls(TOKENIZERS[kind].train(texts, vocab_size))

    @classmethod
    def blank(cls, vocab_size: int) -> "Tokenizer":
        """A tokenizer of `vocab_size` meaningless words, for the shapes of a model."""
        words = {f"word {i}": i for i in range(vocab_size - 1)}
        return cls(tokenizers.Tokenizer(models.WordLevel(words | {END: vocab_size - 1}, "word 0")))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """Reads a `tokenizer.json` of this or another library, with the special tokens that a
        `tokenizer_config.json` beside it names, its chat template, and the tokenizer of targets beside it.

        Raises:
          UserError: no such file, or another format.
        """
        file = Path(path).expanduser()
        backend = read_backend(file)
        beside = any(file.with_name(name).is_file() for name in (SETTINGS, TEMPLATE))
        special = special_in(settings_beside(file), backend) if beside else NONE_NAMED
        targets = cls(read_backend(saved), special) if (saved := file.with_name(TARGETS)).is_file() else None
        tokenizer = cls(backend, special, targets)
        tokenizer.folder = file.parent
        return tokenizer

    def save(self, path: str | os.PathLike) -> None:
        """Writes `tokenizer.json` atomically, with a tokenizer of targets beside it if that is another, and
        `tokenizer_config.json` if it names special tokens or has values that are kept."""
        if settings := self.special | self.extras:
            replace(Path(path).with_name(SETTINGS), json.dumps(settings, ensure_ascii=False, indent=2))
        if self.targets is not self:
            replace(Path(path).with_name(TARGETS), self.targets.content)
        replace(Path(path), self.content)

    @property
    def chat_template(self) -> str:
        """The template by which messages become one text; "" if none is known."""
        return self.extras.get("chat_template", "")

    @chat_template.setter
    def chat_template(self, template: str) -> None:
        self.extras["chat_template"] = template

    @property
    def content(self) -> str:
        """The text of `tokenizer.json`."""
        return self.backend.to_str(pretty=True)

    @property
    def identity(self) -> str:
        """A digest that differs between tokenizers that encode differently."""
        targets = [] if self.targets is self else [self.targets.content]
        return digest(self.content, *([self.special] if self.special else []), *targets)

    @functools.cached_property
    def vocab_size(self) -> int:
        """The number of tokens, including special ones; ids are below it."""
        return max(self.backend.get_vocab().values()) + 1

    def find(self, token: str) -> int | None:
        """The id of a token by its exact name in the vocabulary, or None."""
        return self.backend.token_to_id(token)

    def name(self, token: int) -> str:
        """The name of a token in the vocabulary; "" for an unused id."""
        return self.backend.id_to_token(token) or ""

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token, or None if there is none."""
        name = getattr(self.backend.model, "unk_token", None)
        return None if name is None else self.backend.token_to_id(name)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the character span (start, end) of each."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def words(self) -> dict[str, int]:
        """Words and subwords that are single tokens -> ids: preferably of the token after a space, as inside
        a text, otherwise of that at the beginning of a text."""
        shown = {self.normalize(self.decode([i])) for i in range(self.vocab_size)}
        words = sorted(shown - {"", UNKNOWN})
        ids: dict[str, int] = {}
        for texts in ([f" {word}" for word in words], words):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
            for word, encoding in zip(words, encodings, strict=True):
                if len(encoding.ids) == 1 and encoding.ids[0] != self.unknown_id:
                    ids.setdefault(word, encoding.ids[0])
        return dict(sorted(ids.items(), key=lambda item: item[1]))

    def normalize(self, text: str) -> str:
        """The text after the tokenizer's normalisation (such as lower case), stripped."""
        normalizer = self.backend.normalizer
        return (normalizer.normalize_str(text) if normalizer else text).strip()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.backend.decode([int(i) for i in ids])

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text that `ids` add to that of the ids `before`, on which it may depend in some tokenizers."""
        text, known = self.decode([*before, *ids]), self.decode(before)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, known, strict=False))
        return text[len(known) if text.startswith(known) else len(list(same)) :]

    def stream(self, ids: Iterable[int], before: Sequence[int] = ()) -> Iterator[str]:
        """`decode_after` in pieces as the ids arrive, without partial characters."""
        shown: list[int] = list(before)
        pending: list[int] = []
        for i in ids:
            pending.append(int(i))
            text = self.decode_after(shown, pending)
            if text and not text.endswith(UNKNOWN):
                yield text
                shown, pending = pending, []
        if pending:
            yield self.decode_after(shown, pending)
