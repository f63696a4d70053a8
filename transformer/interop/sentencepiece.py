"""SentencePiece models, tokenizer.model, as tokenizers of the `tokenizers` library.

A model is a message of protocol buffers: pieces with scores, how they were learnt, how text is normalised.
Source: Kudo and Richardson 2018; https://github.com/google/sentencepiece, sentencepiece_model.proto.
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from transformer.data.tokenization.tokenizer_formats import other_format
from transformer.errors import UserError, first_line

MAX_FILE_BYTES = 1 << 26
"""Bytes of a file. Those of the largest vocabularies have a few megabytes."""

SPACE = "\u2581"
"""The mark of a space in a piece."""

FOREIGN = "\uffff"
"""The prefix of the names of tokens that a model does not have, which is not a character."""

MARK, LANGUAGE = r"<[^\s<>]+>", r">>[^\s<>]+<<"
"""The names of tokens that stand for no text, and of those that name the language of a target."""

DECOMPOSED, COMPOSED = "e\u0301", "\u00e9"
"""A letter and its mark, and both in one character: a table of Unicode's NFKC makes one of the other."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces."""

UNIGRAM, BPE = 1, 2
"""Types of models."""


@dataclass(frozen=True)
class Piece:
    """A token, its score and type."""

    text: str
    score: float
    type: int


def read_sentencepiece(path: Path, ids: Mapping[str, int] | None = None) -> tokenizers.Tokenizer:
    """The tokenizer in a SentencePiece model.

    With `ids`, numbers from 0 by name, it has these tokens and ids, as where two models share a vocabulary
    (Marian). Pieces that are not among them are left out. Of the tokens that the model does not have a text
    has those of one character alone, where that is unknown to the model.

    Raises:
      UserError: it is no such file, or a model that this library cannot build: of words or characters, with
        pieces of the user, or with spaces at the end of words; with `ids`, one that is not unigram.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UserError(f"{path}: {path.stat().st_size:,} bytes; expected at most {MAX_FILE_BYTES:,}")
    try:
        parts: dict[int, list[Any]] = {1: [], 2: [], 3: []}
        for number, value in _fields(path.read_bytes()):
            parts.setdefault(number, []).append(value)
        pieces = [_piece(dict(_fields(message))) for message in parts[1]]
        trained, normal = (dict(_fields(b"".join(parts[number]))) for number in (2, 3))
    except (ValueError, TypeError, struct.error) as error:
        raise UserError(f"{path}: {other_format(path) or f'not a SentencePiece model ({error})'}") from None
    if ids is not None and trained.get(3, UNIGRAM) != UNIGRAM:
        raise UserError(f"{path}: with a vocabulary of its own only a unigram model is known here")
    if why := _why_not(pieces, trained):
        raise UserError(f"{path}: {why}; give its tokenizer.json instead")
    pieces = pieces if ids is None else _numbered(pieces, ids)
    try:
        backend = _build(pieces, trained, normal)
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"{path}: not a SentencePiece model ({first_line(error)[:160]})") from None
    backend.add_special_tokens([piece.text for piece in pieces if piece.type == CONTROL])
    languages = [name for name in ids or () if re.fullmatch(LANGUAGE, name)]
    backend.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in languages])
    return backend


def _numbered(pieces: Sequence[Piece], ids: Mapping[str, int]) -> list[Piece]:
    """The pieces in the order of `ids`. A token that is none of them has a name that no text has, unless it
    is a character: then it is what would be unknown."""
    known = {piece.text: piece for piece in pieces}
    unknown = min(piece.score for piece in pieces) - 10  # SentencePiece's score of an unknown character
    return [known.get(name) or _foreign(name, unknown) for name in sorted(ids, key=lambda name: ids[name])]


def _foreign(name: str, score: float) -> Piece:
    if re.fullmatch(MARK, name):
        return Piece(name, score, CONTROL)
    if re.fullmatch(LANGUAGE, name):
        return Piece(name, score, USER_DEFINED)
    return Piece(name, score, NORMAL) if len(name) == 1 else Piece(FOREIGN + name, score, UNUSED)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a message: an integer, or bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value: Any
            value, place = _varint(data, place)
        elif kind in (1, 2, 5):
            size, place = _varint(data, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
            if size > len(data) - place:
                raise ValueError("it ends within a field")
            value, place = data[place : place + size], place + size
        else:
            raise ValueError(f"a field of kind {kind}")
        yield number, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[place : place + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, place + i + 1
    raise ValueError("it ends within a number")


def _piece(fields: dict[int, Any]) -> Piece:
    # Nine digits tell all numbers of single precision apart, and are read back as they were written.
    score = float(f"{struct.unpack('<f', fields.pop(2, bytes(4)))[0]:.9g}")
    return Piece(fields.get(1, b"").decode("utf-8"), score, int(fields.pop(3, NORMAL)))


def _why_not(pieces: Sequence[Piece], trained: dict[int, Any]) -> str:
    """Why a model cannot be built; "" if it can."""
    kind = trained.get(3, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        return f"a SentencePiece model of type {kind}; only unigram and bpe are known here"
    if len({piece.text for piece in pieces}) < len(pieces) or not pieces:
        return "a SentencePiece model without pieces, or with one twice"
    if [piece.type for piece in pieces].count(UNKNOWN) != 1:
        return "a SentencePiece model without a piece for unknown text"
    if any(piece.type == USER_DEFINED for piece in pieces):
        return "a SentencePiece model with pieces of the user"
    return "a SentencePiece model with spaces at the end of words" if trained.get(24) else ""


def _build(pieces: Sequence[Piece], trained: dict[int, Any], normal: dict[int, Any]) -> tokenizers.Tokenizer:
    bytes_too = bool(trained.get(35, 0))
    unknown = next(i for i, piece in enumerate(pieces) if piece.type == UNKNOWN)
    model: Any
    if trained.get(3, UNIGRAM) == UNIGRAM:
        model = models.Unigram([(piece.text, piece.score) for piece in pieces], unknown, bytes_too)
    else:
        ids = {piece.text: i for i, piece in enumerate(pieces)}
        name = pieces[unknown].text
        model = models.BPE(ids, _merges(pieces), unk_token=name, fuse_unk=True, byte_fallback=bytes_too)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = _normalizer(normal)
    # The name of a piece that stands for no text is cut after its first letter, so that no text has it.
    foreign = any(piece.text.startswith(FOREIGN) for piece in pieces)
    special = [piece.text for piece in pieces if piece.type != NORMAL and piece.text]
    names = [
        f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in special if not text.startswith(FOREIGN)
    ]
    names += [FOREIGN] if foreign else []
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(names)), "isolated")
    prefix = [decoders.Strip(" ", 1, 0)] if normal.get(3, 1) else []
    of_bytes = [decoders.ByteFallback()] if bytes_too else []
    spaces = [*([decoders.Replace(FOREIGN, "")] if foreign else []), decoders.Replace(SPACE, " ")]
    backend.decoder = decoders.Sequence([*spaces, *of_bytes, decoders.Fuse(), *prefix])
    return backend


def _normalizer(normal: dict[int, Any]) -> normalizers.Normalizer:
    """Characters by a table, then spaces: at most one between words, one before the text, and all visible."""
    steps: list[Any] = [normalizers.Precompiled(table)] if (table := normal.get(2)) else []
    if steps and steps[0].normalize_str(DECOMPOSED) == COMPOSED:
        # The library reads the table by grapheme, and takes the shortest match there: of a letter with two
        # marks the second is lost. A composed letter is one character.
        steps = [normalizers.NFC(), *steps]
    if normal.get(4, 1):
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Prepend(" ")] if normal.get(3, 1) else []
    steps += [normalizers.Replace(" ", SPACE)] if normal.get(5, 1) else []
    return normalizers.Sequence(steps)


def _merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """All pairs of pieces that are a piece together, those with the highest score first: the order in which
    SentencePiece merges them."""
    scores = {piece.text: piece.score for piece in pieces if piece.type == NORMAL}
    merges = []
    for text, score in scores.items():
        for i in range(1, len(text)):
            if text[:i] in scores and text[i:] in scores:
                merges.append((-score, text[:i], text[i:]))
    return [(left, right) for _, left, right in sorted(merges, key=lambda merge: merge[0])]
