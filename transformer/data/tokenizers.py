"""Text to integers and back: bytes, characters, byte-level BPE, words, or any other `tokenizer.json`."""

import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from transformer.data.disk_cache import digest
from transformer.data.tokenizer_kinds import (
    END,
    UNKNOWN,
    TokenizerKind,
    train_bpe,
    train_bytes,
    train_characters,
    train_words,
)
from transformer.errors import UserError

ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""What other tokenizers call the token that ends a text, the preferred name first."""


TOKENIZERS = {
    "bytes": TokenizerKind(train_bytes, learns=False),
    "characters": TokenizerKind(train_characters),
    "bpe": TokenizerKind(train_bpe, least_size=257, needs="every byte"),
    "words": TokenizerKind(train_words, least_size=3, needs="a word, all others"),
}
"""By the name that `data.tokenizer` has; any other value there is a file, `tokenizer.json`."""


class Tokenizer:
    """A `tokenizer.json` with one special token, `eos_id` (= `bos_id` = `pad_id`), around every document.

    What looks like a special token in a text is plain text: it is encoded letter by letter, so no text can
    end a document early or start another; only the program itself puts `eos_id` anywhere.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Takes over a tokenizer of the library, and adds `<|endoftext|>` where it has no such token."""
        vocabulary = backend.get_vocab()
        name = next((end for end in ENDS if end in vocabulary), END)
        backend.add_special_tokens([name])
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # that is, as plain text
        self._backend = backend
        self.eos_id: int = backend.get_vocab()[name]
        self.bos_id = self.pad_id = self.eos_id

    @classmethod
    def train(cls, kind: str, texts: Iterable[str] = (), vocab_size: int = 0) -> "Tokenizer":
        """Makes a tokenizer of one of the kinds of `TOKENIZERS` from a training text, given in pieces.

        Raises:
          UserError: an unknown kind.
        """
        if kind not in TOKENIZERS:
            raise UserError(f"{kind!r}: unknown tokenizer; expected a file or one of {', '.join(TOKENIZERS)}")
        return cls(TOKENIZERS[kind].train(texts, vocab_size))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """Reads a `tokenizer.json`, ours or another's.

        Raises:
          UserError: there is no such file, or it is something else.
        """
        try:
            return cls(tokenizers.Tokenizer.from_str(Path(path).expanduser().read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"{path}: not a tokenizer.json ({str(error).splitlines()[0]})") from None

    def save(self, path: str | os.PathLike) -> None:
        """Writes `tokenizer.json`, whole or not at all."""
        part = Path(f"{path}.{os.getpid()}.part")
        part.write_text(self.content, encoding="utf-8")
        os.replace(part, path)

    @property
    def content(self) -> str:
        """The text of `tokenizer.json`."""
        return self._backend.to_str(pretty=True)

    @property
    def identity(self) -> str:
        """Differs between tokenizers that encode differently."""
        return digest(self.content)

    @functools.cached_property
    def vocab_size(self) -> int:
        """Number of tokens, the special ones included: ids are below it."""
        return max(self._backend.get_vocab().values()) + 1

    def find(self, token: str) -> int | None:
        """The id of a token by its exact name in the vocabulary; None where there is none."""
        return self._backend.token_to_id(token)

    def name(self, token: int) -> str:
        """What the vocabulary calls a token; nothing where the id is nobody's."""
        return self._backend.id_to_token(token) or ""

    @property
    def unknown_id(self) -> int | None:
        """The id of whatever the vocabulary does not have; None where it has everything."""
        name = getattr(self._backend.model, "unk_token", None)
        return None if name is None else self._backend.token_to_id(name)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without any special token."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and from which character to which each of them stands in it."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def words(self) -> dict[str, int]:
        """The words, and pieces of words, that are one token each, with its id: the one that stands for the
        word after a space, as inside a text, or else the one at a text's beginning."""
        shown = {self.normalize(self.decode([i])) for i in range(self.vocab_size)}
        words = sorted(shown - {"", UNKNOWN})
        found: dict[str, int] = {}
        for texts in ([f" {word}" for word in words], words):
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
            for word, encoding in zip(words, encodings, strict=True):
                if len(encoding.ids) == 1 and encoding.ids[0] != self.unknown_id:
                    found.setdefault(word, encoding.ids[0])
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def normalize(self, text: str) -> str:
        """The text as it is read, in lower case, say, without white space around it."""
        normalizer = self._backend.normalizer
        return (normalizer.normalize_str(text) if normalizer else text).strip()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens; bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode([int(i) for i in ids])

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """What `ids` add to the text of the ids `before`: some decoders look at the token before."""
        text, known = self.decode([*before, *ids]), self.decode(before)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, known, strict=False))
        return text[len(known) if text.startswith(known) else len(list(same)) :]

    def stream(self, ids: Iterable[int], before: Sequence[int] = ()) -> Iterator[str]:
        """The text of ids as they arrive, after those `before`: joined, it is `decode_after`, and no
        character comes in halves."""
        shown: list[int] = list(before)
        held: list[int] = []
        for i in ids:
            held.append(int(i))
            text = self.decode_after(shown, held)
            if text and not text.endswith(UNKNOWN):
                yield text
                shown, held = held, []
        if held:
            yield self.decode_after(shown, held)

    def encode_counting(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its ids (m,) and the number of its UTF-8 bytes that each id stands for (m,).

        A token counts the bytes from where the tokens before it end to where it ends itself, so that they add
        up to the text's bytes, less what the tokenizer drops at its end. The texts are encoded in parallel.
        """
        if self._is_bytes:
            return [_as_bytes(text) for text in texts]
        sizes = self._byte_sizes
        if sizes is None:
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
            return [_by_offsets(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]
        # Every token of a byte-level tokenizer is so many bytes wherever it stands: no offsets are needed.
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [np.array(encoding.ids, np.int64) for encoding in encodings]
        return [(i, sizes[i]) for i in ids]

    def gives_back(self, texts: Sequence[str], ids: Sequence[Iterable[int]]) -> np.ndarray:
        """Whether `decode` of each one's ids is the text, (n,) bool: of a tokenizer that folds case, drops
        spaces or has a token for all it does not know it often is not."""
        if self._is_bytes or self._byte_sizes is not None:
            return np.ones(len(texts), bool)
        decoded = self._backend.decode_batch([list(map(int, each)) for each in ids])
        return np.array([text == found for text, found in zip(texts, decoded, strict=True)], bool)

    @property
    def count_type(self) -> np.dtype:
        """The type for the bytes that one token, or the rest of a text that its tokens leave, may count."""
        sizes = self._byte_sizes
        return np.dtype(np.uint8 if sizes is not None and sizes.max() < 256 else np.uint32)

    @functools.cached_property
    def _is_bytes(self) -> bool:
        return self.content == type(self).train("bytes").content

    @functools.cached_property
    def _byte_sizes(self) -> np.ndarray | None:
        """The bytes of each token, where it keeps every byte of a text and each token is a run of them."""
        parts = json.loads(self.content)
        model, before = parts["model"], parts["pre_tokenizer"] or {}
        known = (
            parts["normalizer"] is None
            and {"type": "ByteLevel", "add_prefix_space": False}.items() <= before.items()
            and all(token["special"] for token in parts["added_tokens"])
            and model["type"] == "BPE"
            and set(pre_tokenizers.ByteLevel.alphabet()) <= model["vocab"].keys()
            and not (model["continuing_subword_prefix"] or model["end_of_word_suffix"])
        )
        if not known:
            return None
        sizes = np.zeros(self.vocab_size, np.int64)
        for token, i in model["vocab"].items():
            sizes[i] = len(token)  # the alphabet has one character for each byte
        return sizes


def _as_bytes(text: str) -> tuple[np.ndarray, np.ndarray]:
    ids = np.frombuffer(text.encode(), np.uint8)
    return ids, np.ones_like(ids)


def _by_offsets(text: str, encoding: tokenizers.Encoding) -> tuple[np.ndarray, np.ndarray]:
    ends = np.array(encoding.offsets, np.int64).reshape(-1, 2)[:, 1]
    # Tokens that share a character all end with it: the first of them counts its bytes.
    ends = _bytes_before(text)[np.maximum.accumulate(ends)]
    return np.array(encoding.ids, np.int64), np.diff(ends, prepend=0)


def _bytes_before(text: str) -> np.ndarray:
    """At i the UTF-8 bytes of the first i characters."""
    if text.isascii():
        return np.arange(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
    return np.concatenate([[0], np.cumsum(widths)])
