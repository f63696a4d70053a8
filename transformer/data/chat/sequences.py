"""Tokenised conversations, cached on disk."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from transformer.data.cache.disk_cache import build_once, digest, map_arrays
from transformer.data.cache.token_cache import BAR
from transformer.data.chat.chat_tokens import ChatTokens
from transformer.data.chat.dialogues import Dialogues
from transformer.errors import UserError


class Sequences:
    """Tokenised conversations in memory-mapped files, made once.

    Sequence i is tokens[offsets[i] : offsets[i + 1]]; `answers` is 1 for tokens to learn, and `firsts` has
    the index of the first of them in each sequence; `records` has the record that each is from.
    """

    def __init__(self, folder: Path) -> None:
        self.identity = folder.name
        arrays = map_arrays(folder)
        self.tokens, self.answers = arrays["tokens"], arrays["answers"]
        self.offsets, self.firsts = arrays["offsets"], arrays["firsts"]
        self.records = arrays["records"]

    def __len__(self) -> int:
        return len(self.firsts)

    @classmethod
    def of(cls, source: Dialogues, tokens: ChatTokens, data_folder: Path) -> "Sequences":
        """Opens the cache of a source, or makes it: the conversations of its records, in order.

        Raises:
          UserError: there is no record, or one is not valid; the message names its place.
        """
        key = digest(4, source.identity, tokens.identity)
        return cls(build_once(data_folder / "dialogues" / key, functools.partial(_write, source, tokens)))


def _write(source: Dialogues, tokens: ChatTokens, folder: Path) -> None:
    offsets, firsts, records = [0], [], []
    with open(folder / "tokens.uint32", "wb") as ids, open(folder / "answers.uint8", "wb") as marks:
        for record, ids_m, answers_m in _encoded(source, tokens):
            records.append(record)
            ids.write(ids_m.astype(np.uint32).tobytes())
            marks.write(answers_m.astype(np.uint8).tobytes())
            offsets.append(offsets[-1] + len(ids_m))
            firsts.append(int(answers_m.argmax()))
    np.array(offsets).tofile(folder / "offsets.int64")
    np.array(firsts).tofile(folder / "firsts.int64")
    np.array(records).tofile(folder / "records.int64")


def _encoded(source: Dialogues, tokens: ChatTokens) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    if not len(source):
        raise UserError(f"{source.name}: no conversation; give more, or data.validation_source")
    for index in tqdm(range(len(source)), f"tokenising {source.name}", unit=" records", **BAR):
        for messages in source.conversations(index):
            try:
                for ids_m, answers_m in tokens.examples(messages, source.last_only):
                    yield index, ids_m, answers_m
            except UserError as error:
                raise UserError(f"{source.place(index)}: {error}") from None
