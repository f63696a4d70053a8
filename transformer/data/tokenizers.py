"""Tokenizers over the `tokenizers` library: bytes, characters, byte-level BPE, or any `tokenizer.json`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from transformer.errors import UserError

END = "<|endoftext|>"
UNKNOWN = "<|unknown|>"
ENDS = (END, "</s>", "<eos>", "[SEP]", "<|end_of_text|>")
"""Names by which a loaded tokenizer may call its end-of-text token, in order of preference."""
KINDS = ("bytes", "characters", "bpe")


class Tokenizer:
    """Text to integers and back; one special token, `eos_id`, stands before and after every document.

    Text that looks like a special token is ordinary text: only the program itself adds one.
    """

    def __init__(self, backend: Backend) -> None:
        """Wraps a tokenizer that has an end-of-text token (see `ENDS`)."""
        self._backend = backend
        ids = (backend.token_to_id(name) for name in ENDS)
        found = [token for token in ids if token is not None]
        if not found:
            raise UserError(f"data.tokenizer: it has no end-of-text token, none of {', '.join(ENDS)}")
        self.eos_id = self.bos_id = self.pad_id = found[0]
        # Without this the library would find special tokens in the middle of what a user wrote.
        self._backend.encode_special_tokens = True
        self._backend.no_padding()
        self._backend.no_truncation()

    @classmethod
    def train(cls, kind: str, texts: Iterable[str], vocab_size: int = 0) -> "Tokenizer":
        """A tokenizer of one of `KINDS`; "bytes" needs no text, "bpe" learns up to `vocab_size` tokens.

        bytes: 256 tokens. characters: one for each character of the text, and one for all others. bpe: merges
        of frequent neighbours, from bytes up (Sennrich et al. 2016; bytes as in Radford et al. 2019).
        """
        if kind not in KINDS:
            raise UserError(f"data.tokenizer: {kind!r} is neither a file nor one of {', '.join(KINDS)}")
        if kind == "characters":
            characters = sorted(set().union(*map(set, texts)))
            vocabulary = {token: i for i, token in enumerate([END, UNKNOWN, *characters])}
            backend = Backend(models.WordLevel(vocabulary, unk_token=UNKNOWN))
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            backend.decoder = decoders.Fuse()
            backend.add_special_tokens([END, UNKNOWN])
            return cls(backend)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {token: i for i, token in enumerate([END, *alphabet])}
        backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "bpe")
        backend.decoder = decoders.ByteLevel()
        if kind == "bpe":
            trainer = trainers.BpeTrainer(
                vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
            )
            backend.train_from_iterator(texts, trainer)
        backend.add_special_tokens([END])
        return cls(backend)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """From a `tokenizer.json`, of this program or any other."""
        if not os.path.isfile(path):
            raise UserError(f"data.tokenizer: {path}: there is no such file")
        try:
            return cls(Backend.from_file(str(path)))
        except UserError:
            raise
        except Exception as error:  # the library raises plain Exception
            raise UserError(f"data.tokenizer: {path}: not a tokenizer.json: {error}") from None

    def save(self, path: str | os.PathLike) -> None:
        """Writes `tokenizer.json`, whole or not at all."""
        part = Path(f"{path}.{os.getpid()}.part")
        part.write_text(self.content, encoding="utf-8")
        os.replace(part, path)

    @property
    def content(self) -> str:
        """The text of `tokenizer.json`."""
        return self._backend.to_str(pretty=False)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; special ones are left out, bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token(self, index: int) -> str:
        """The name of one token."""
        return self._backend.id_to_token(int(index)) or ""

    def documents(self, texts: Iterable[str], batch: int = 256) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each text its tokens between two `eos_id`s, and the UTF-8 bytes that each token stands for.

        The bytes of a document's tokens add up to the document's exactly, whatever the tokenizer does to the
        text: a token counts the bytes from where the one before it ended to where it ends itself, and the
        last `eos_id` what then remains. The texts are encoded `batch` at a time, in parallel.
        """
        chunk: list[str] = []
        for text in texts:
            chunk.append(text)
            if len(chunk) == batch:
                yield from self._encode_batch(chunk)
                chunk = []
        yield from self._encode_batch(chunk)

    def _encode_batch(self, texts: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for text, encoding in zip(
            texts, self._backend.encode_batch(texts, add_special_tokens=False), strict=True
        ):
            tokens = np.full(len(encoding) + 2, self.eos_id, np.uint32)
            tokens[1:-1] = encoding.ids
            ends = np.zeros(len(encoding) + 2, np.int64)
            characters_end = np.array(encoding.offsets, np.int64).reshape(-1, 2)[:, 1]
            before = _bytes_before(text)
            # Several tokens of one character all report its end; the first of them then counts its bytes.
            ends[1:-1] = np.maximum.accumulate(before[characters_end])
            ends[-1] = before[-1]
            yield tokens, np.diff(ends, prepend=0).astype(np.uint32)


def _bytes_before(text: str) -> np.ndarray:
    """At i, the number of UTF-8 bytes of the first i characters."""
    if text.isascii():
        return np.arange(len(text) + 1)
    code = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    width = 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)
    return np.concatenate([[0], np.cumsum(width)])
