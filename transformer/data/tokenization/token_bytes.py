"""Encoding of texts by tokenizers other than bytes, with the number of UTF-8 bytes of each token."""

import json
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from transformer.data.tokenization.tokenizers import Tokenizer

BATCH = 4 << 20
"""Characters that are tokenised at once, to bound the memory."""


Encoded = tuple[np.ndarray, np.ndarray, bool]
"""A tokenised text: ids (m,), the number of UTF-8 bytes of each token (m,), and whether decoding gives
another text."""


Encode = Callable[[Iterable[str]], Iterator[Encoded]]
"""Encodes texts as they come, several in parallel. A token counts the bytes from where the tokens before it
end to where it ends itself: together they are the text's bytes, less what the tokenizer drops at its end."""


def encode_by_sizes(
    backend: tokenizers.Tokenizer, sizes: np.ndarray, texts: Iterable[str]
) -> Iterator[Encoded]:
    """For a byte-level tokenizer, whose tokens have fixed `sizes` in bytes."""
    for batch in _batches(texts):
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
            ids = np.array(encoding.ids, np.int64)
            yield ids, sizes[ids], False


def encode_by_offsets(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> Iterator[Encoded]:
    """For any tokenizer, by the character offsets of its tokens. Tokenizers that fold case, drop spaces or
    have an unknown token often decode to another text."""
    for batch in _batches(texts):
        encodings = backend.encode_batch(batch, add_special_tokens=False)
        decoded = backend.decode_batch([encoding.ids for encoding in encodings])
        for text, encoding, decoded_text in zip(batch, encodings, decoded, strict=True):
            ends = np.array(encoding.offsets, np.int64).reshape(-1, 2)[:, 1]
            # Tokens that share a character all end with it: the first of them counts its bytes.
            ends = _bytes_before(text)[np.maximum.accumulate(ends)]
            yield np.array(encoding.ids, np.int64), np.diff(ends, prepend=0), text != decoded_text


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts, some `BATCH` characters at a time."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text) + 1
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def byte_sizes(tokenizer: Tokenizer) -> np.ndarray | None:
    """The number of bytes of each token of a lossless byte-level tokenizer; None for any other."""
    parts = json.loads(tokenizer.content)
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
    sizes = np.zeros(tokenizer.vocab_size, np.int64)
    for token, i in model["vocab"].items():
        sizes[i] = len(token)  # the alphabet has one character for each byte
    return sizes


def _bytes_before(text: str) -> np.ndarray:
    """At i the number of UTF-8 bytes of the first i characters."""
    if text.isascii():
        return np.arange(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
    return np.concatenate([[0], np.cumsum(widths)])
