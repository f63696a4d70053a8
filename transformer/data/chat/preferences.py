"""Pairs of a better and a worse answer to the same prompt: from a config's `data` group to packed rows."""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer.config import Positive
from transformer.data.chat.chat import ChatData, DialogueConfig, PackedSequences
from transformer.data.chat.dialogues import Preferences
from transformer.data.corpus import key_in_errors
from transformer.data.sources import Source


@dataclass(frozen=True)
class PreferenceDataConfig(DialogueConfig):
    """Pairs of answers to a prompt, packed into rows."""

    sequence_length: Positive = 512  # tokens per row, which has both answers of a pair, each with its prompt
    prompt_field: str = "prompt"  # field of the prompt, a text or messages; "": the answers start with it
    chosen_field: str = "chosen"  # field of the better answer
    rejected_field: str = "rejected"  # field of the worse answer


class PreferenceRows(PackedSequences):
    """Rows of pairs: sequences 2 k - 1 and 2 k are the better and the worse answer to the prompt of pair k.

    `answers` (b, t) is 1 where the target is of an answer, `weights` (b, k) for each pair that is there, and
    `reference` (b, k, 2) has the log-likelihoods of both answers by the reference model.
    """

    def __init__(self, *arguments: Any, reference_n2: np.ndarray | None = None, **options: Any) -> None:
        """As for `PackedSequences`; without `reference_n2`, of all records, `reference` is 0."""
        super().__init__(*arguments, answers=2, **options)
        self._reference_n2 = reference_n2

    def referring_to(self, reference_n2: np.ndarray) -> "PreferenceRows":
        """The same rows with other log-likelihoods by a reference."""
        rows = copy.copy(self)
        rows._reference_n2 = reference_n2
        return rows

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        batch, numbers_bk = super().batch(rows), self.pairs(rows)
        there_bk = numbers_bk >= 0
        reference_bk2 = np.zeros((*numbers_bk.shape, 2), np.float32)
        if self._reference_n2 is not None:
            reference_bk2[there_bk] = self._reference_n2[numbers_bk[there_bk]]
        of_pairs = {"weights": there_bk.astype(np.float32), "reference": reference_bk2}
        return batch | {"answers": batch["weights"]} | of_pairs

    def pairs(self, rows: np.ndarray) -> np.ndarray:
        """The number, from 0, of the record of each pair (b, k) of these rows; -1 where there is none."""
        found_bk = np.full((len(rows), self.sequence_length // 2), -1)  # each answer has a token
        for i, row in enumerate(rows):
            pairs = self._rows[row] if row >= 0 else ()
            found_bk[i, : len(pairs)] = pairs
        return found_bk


class PreferenceData(ChatData):
    """The pairs of a config; raises as `Corpus`.

    `reference`, if it is given, maps a split to the log-likelihoods (n, 2) of both answers of all its
    records, and `reference_identity` says of which model they are.
    """

    config: PreferenceDataConfig
    fields_of = ("prompt_field", "chosen_field", "rejected_field")
    source_class = Preferences
    reference: Callable[[str], np.ndarray] | None = None

    def open(self, split: str, field: str, **options: Any) -> Source:
        """As for `Corpus`; records are split by the prompt, or by what is before the first answer."""
        by = [self.config.prompt_field or self.config.chosen_field]
        return super().open(split, field, **{"reads": by} | options)

    def packer(self, split: str) -> Callable[..., PreferenceRows]:
        """`seed` -> the rows of a split, packed in another order."""
        reference_n2 = self.reference(split) if self.reference else None
        return functools.partial(self.pairs, split, reference_n2=reference_n2)

    def packings(self, split: str) -> Iterator[tuple[str, PreferenceRows]]:
        """See `PackedCorpus`; without the reference, which takes a model."""
        yield self.source(split).name, self.pairs(split)

    def pairs(self, split: str, seed: int = 0, reference_n2: np.ndarray | None = None) -> PreferenceRows:
        """The rows of a split, with these log-likelihoods."""
        c, sequences = self.config, self.sequences(split)
        with key_in_errors("too_long"):
            return PreferenceRows(
                sequences,
                c.sequence_length,
                c.too_long,
                seed=seed,
                place=self.source(split).place,
                reference_n2=reference_n2,
            )

    def equal_pairs(self, split: str) -> int:
        """The number of pairs whose answers are the same, so that their loss has no gradient."""
        sequences = self.sequences(split)
        bounds_n3 = np.stack([sequences.offsets[i : len(sequences) + i : 2] for i in range(3)], axis=1)
        alike = [(a, b, c) for a, b, c in bounds_n3 if b - a == c - b]
        return sum(np.array_equal(sequences.tokens[a:b], sequences.tokens[b:c]) for a, b, c in alike)

    def blank(self) -> dict[str, np.ndarray]:
        """A row of padding, stacked, for its shapes; no data are read."""
        batch, k = super().blank(), self.config.sequence_length // 2
        of_pairs = {"weights": np.zeros((1, k), np.float32), "reference": np.zeros((1, k, 2), np.float32)}
        return batch | {"answers": batch["weights"]} | of_pairs
