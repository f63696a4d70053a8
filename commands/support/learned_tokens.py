"""The tokens of a batch's rows as text in which those to learn are marked."""

from collections.abc import Iterator

import numpy as np

from transformer.data.tokenization.tokenizers import UNKNOWN, Tokenizer
from transformer.errors import UserError

MARKS = ("⟦", "·", "⟧")
"""Marks before tokens to learn, between two of them and after them, where there is no colour."""

COLOURS = ("\033[1;32m", "\033[0;32m")
"""Those of tokens to learn at a terminal, in turn, so that each token shows; the context is dim."""

DIM, PLAIN = "\033[2m", "\033[0m"

CONTEXT = 8
"""Tokens before one that its text may depend on."""

LONGEST = 4
"""Tokens of one character at most, by its bytes in UTF-8."""


def marked_documents(
    batch: dict[str, np.ndarray], tokenizer: Tokenizer | None, colours: bool
) -> Iterator[tuple[int, int, str, str]]:
    """Row, number of the document there from 1, "LEARNED of TOKENS tokens are learned", and the text of each
    document of a batch (b, t) of `tokens`, `targets`, `segments` and `weights`, or of preferences `answers`.

    Raises:
      UserError: the targets are not the next tokens, or there is no tokenizer.
    """
    weights_bt = batch.get("answers", batch.get("weights"))
    names = ("tokens", "targets", "segments")
    if tokenizer is None or weights_bt is None or any(name not in batch for name in names):
        raise UserError("--learned: batches of this run have no tokens with targets")
    special = {i for i, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special}
    for row, segments_t in enumerate(batch["segments"]):
        for number in np.unique(segments_t[segments_t > 0]).tolist():
            here_t = segments_t == number
            tokens_n, targets_n = batch["tokens"][row][here_t], batch["targets"][row][here_t]
            if not np.array_equal(tokens_n[1:], targets_n[:-1]):
                raise UserError("--learned: the targets of this run are not the next tokens")
            marks = [False, *(weights_bt[row][here_t] > 0).tolist()]
            ids = [*tokens_n.tolist(), int(targets_n[-1])]
            pieces = [*_pieces(ids, marks, tokenizer, special)]
            text = _coloured(pieces) if colours else _marked(pieces)
            yield row, number, f"{sum(marks):,} of {len(ids):,} tokens are learned", text


def _pieces(
    ids: list[int], marks: list[bool], tokenizer: Tokenizer, special: set[int]
) -> Iterator[tuple[str, bool]]:
    """(the text of a token, or of those that one character has, and whether it is learned)"""
    start = 0
    for stop in range(1, len(ids) + 1):
        if ids[stop - 1] in special:
            text = tokenizer.name(ids[stop - 1])
        else:
            text = tokenizer.decode_after(ids[max(0, start - CONTEXT) : start], ids[start:stop])
            whole = stop - start >= LONGEST or not text.endswith(UNKNOWN)
            next_one = stop < len(ids) and marks[stop] == marks[start] and ids[stop] not in special
            if next_one and not whole:
                continue
        yield text, marks[start]
        start = stop


def _marked(pieces: list[tuple[str, bool]]) -> str:
    before, between, after = MARKS
    text, inside = "", False
    for piece, learned in pieces:
        opens = (between if inside else before) if learned else (after if inside else "")
        text, inside = text + opens + piece, learned
    return text + (after if inside else "")


def _coloured(pieces: list[tuple[str, bool]]) -> str:
    texts = [(COLOURS[i % 2] if learned else DIM) + piece for i, (piece, learned) in enumerate(pieces)]
    return "".join(texts) + PLAIN
