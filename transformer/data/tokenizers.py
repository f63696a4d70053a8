"""Text to integers and back: bytes, characters, byte-level BPE, words, or any other `tokenizer.json`."""

import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from transformer.data.disk_cache import digest
from transformer.data.tokenizer_kinds import (
    END,
    UNKNOWN,
    TokenizerKind,
    train_bpe,
    train_characters,
    train_words,
)
from transformer.errors import UserError

ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""What other tokenizers call the token that ends a text, the preferred name first."""


def _symbol(byte: int) -> str:
    """The character by which byte-level tokenizers write a byte: itself where that is visible."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in shown else chr(0x100 + byte - sum(other < byte for other in shown))


def byte_tokens(texts: Iterable[str] = (), vocab_size: int = 0) -> tokenizers.Tokenizer:
    """Id b is byte b, whatever the text."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={_symbol(byte): byte for byte in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


TOKENIZERS = {
    "bytes": TokenizerKind(byte_tokens, learns=False),
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
        """Takes over a tokenizer of the library, `backend`, and adds `<|endoftext|>` where it has no such
        token."""
        vocabulary = backend.get_vocab()
        name = next((end for end in ENDS if end in vocabulary), END)
        backend.add_special_tokens([name])
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # that is, as plain text
        self.backend = backend
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
        return self.backend.to_str(pretty=True)

    @property
    def identity(self) -> str:
        """Differs between tokenizers that encode differently."""
        return digest(self.content)

    @functools.cached_property
    def vocab_size(self) -> int:
        """Number of tokens, the special ones included: ids are below it."""
        return max(self.backend.get_vocab().values()) + 1

    def find(self, token: str) -> int | None:
        """The id of a token by its exact name in the vocabulary; None where there is none."""
        return self.backend.token_to_id(token)

    def name(self, token: int) -> str:
        """What the vocabulary calls a token; nothing where the id is nobody's."""
        return self.backend.id_to_token(token) or ""

    @property
    def unknown_id(self) -> int | None:
        """The id of whatever the vocabulary does not have; None where it has everything."""
        name = getattr(self.backend.model, "unk_token", None)
        return None if name is None else self.backend.token_to_id(name)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without any special token."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and from which character to which each of them stands in it."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def words(self) -> dict[str, int]:
        """The words, and pieces of words, that are one token each, with its id: the one that stands for the
        word after a space, as inside a text, or else the one at a text's beginning."""
        shown = {self.normalize(self.decode([i])) for i in range(self.vocab_size)}
        words = sorted(shown - {"", UNKNOWN})
        found: dict[str, int] = {}
        for texts in ([f" {word}" for word in words], words):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
            for word, encoding in zip(words, encodings, strict=True):
                if len(encoding.ids) == 1 and encoding.ids[0] != self.unknown_id:
                    found.setdefault(word, encoding.ids[0])
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def normalize(self, text: str) -> str:
        """The text as it is read, in lower case, say, without white space around it."""
        normalizer = self.backend.normalizer
        return (normalizer.normalize_str(text) if normalizer else text).strip()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.backend.decode([int(i) for i in ids])

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
