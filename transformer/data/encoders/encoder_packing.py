"""Packing of encoder inputs, `[CLS] text [SEP]`, with labels: several texts per row."""

import functools
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from transformer.data.cache.token_cache import TokenCache
from transformer.data.loader import Rows
from transformer.data.pairs.pair_packing import laid_out, pack, ranges
from transformer.data.sources.base import tallied
from transformer.data.text.long_texts import count_excerpts, excerpt
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.errors import UserError


class EncoderRows(Rows):
    """Packed rows of texts, by first fit.

    Text i of a row (i = 1, 2, ...) has segment i; 0 is padding. A row is a dictionary of arrays, (t,):

    - `tokens`: int32, `[CLS] text [SEP]`, or for pairs `[CLS] first [SEP] second [SEP]`;
    - `segments`, `positions`: int32; `types`: int32, 1 in the second text and its `[SEP]`, else 0;

    and of arrays (k,), with k the largest number of texts in a row: `labels`, int32, and `weights`, float32,
    1 where there is a text. The order of texts is fixed. A subclass implements `texts` and `document`.
    """

    def __init__(
        self,
        lengths_n: np.ndarray,
        labels_n: np.ndarray,
        packed: np.ndarray,
        special_tokens: SpecialTokens,
        length: int,
    ) -> None:
        """`lengths_n` (with special tokens, at most `length`) and `labels_n` are those of all texts, `packed`
        the indices of texts to pack, `length` the tokens per row."""
        self.labels, self.packed, self.special_tokens, self.sequence_length = (
            labels_n,
            packed,
            special_tokens,
            length,
        )
        self._lengths_n = lengths_n

    @functools.cached_property
    def _rows(self) -> list[np.ndarray]:
        """The texts of each row."""
        packed, lengths_n, length = self.packed, self._lengths_n, self.sequence_length
        whole = lengths_n[packed] == length  # each fills a row of its own
        return [*packed[whole, None], *pack(lengths_n[:, None], packed[~whole], [length])]

    @functools.cached_property
    def most(self) -> int:
        """The largest number of texts in a row."""
        return max(map(len, self._rows))

    @abstractmethod
    def texts(self, index: int) -> Sequence[np.ndarray]:
        """The tokens of a text, or of both texts of a pair, without special tokens."""

    def read(self, index: int, epoch: int) -> tuple[Sequence[np.ndarray], int]:
        """The `texts` of an index, and the label; a subclass may vary them by epoch, but not make them
        longer."""
        return self.texts(index), int(self.labels[index])

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def padding(self) -> float:
        """The share of padding among all tokens."""
        return 1 - self._lengths_n[self.packed].sum() / (len(self) * self.sequence_length)

    def batch(self, rows: np.ndarray, epochs: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked, as in these epochs (None: the first); index -1 is a row of
        padding."""
        shape = len(rows), self.sequence_length
        labels_bk, weights_bk = (np.zeros((len(rows), self.most), kind) for kind in (np.int32, np.float32))
        inputs: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, np.int32),) * 2]
        places = []
        for i, row in enumerate(rows):
            start = 0
            for k, index in enumerate(self._rows[row] if row >= 0 else ()):
                texts, label = self.read(index, 0 if epochs is None else int(epochs[i]))
                labels_bk[i, k], weights_bk[i, k] = label, 1
                inputs.append(self.special_tokens.build_input(texts))
                places.append((i, k + 1, start, len(inputs[-1][0])))
                start += len(inputs[-1][0])
        row_n, segment_n, start_n, length_n = np.array(places, int).reshape(-1, 4).T
        tokens_m, types_m = map(np.concatenate, zip(*inputs, strict=True))
        values = {"tokens": tokens_m, "segments": np.repeat(segment_n, length_n)}
        values |= {"positions": ranges(length_n), "types": types_m}
        batch = laid_out(values, row_n, start_n, length_n, shape)
        return batch | {"labels": labels_bk, "weights": weights_bk}

    @abstractmethod
    def document(self, index: int) -> int:
        """The number, from 0, of the document of a text, or of the first text of a pair."""

    def documents(self, rows: np.ndarray) -> list[np.ndarray]:
        """For each of these rows the numbers, from 0, of the documents of its texts."""
        texts = (self._rows[row] if row >= 0 else () for row in rows)
        return [np.array([self.document(index) for index in here], int) for here in texts]


class PackedTexts(EncoderRows):
    """The documents of one cache as texts, or of two caches as pairs.

    Empty texts are left out. Of texts longer than a row, `too_long` leaves them out, makes them an error or
    says what is read of them (`excerpt`). With "windows" each window is an example of weight 1 / w, where w
    is the number of windows of its text, and the arrays (k,) of a row include `texts`, int32, the number of
    the text of each window.

    `numbers` are the numbers of the texts that are read; by the number of a text, `label_n` has labels and
    `windows_n` the number of excerpts. `tally` counts texts that are left out or truncated.

    Raises:
      UserError: a text that is too long, with `too_long` "refuse"; no text is left.
    """

    def __init__(
        self,
        caches: Sequence[TokenCache],
        labels: np.ndarray,
        special_tokens: SpecialTokens,
        sequence_length: int,
        too_long: str = "cut",
        stride: int = 0,
    ) -> None:
        """`caches` has the first and, for pairs, the second texts; `labels` (n,) their label indices;
        `stride` is that of windows."""
        self.caches, self.label_n = caches, labels
        self._too_long, self._stride = too_long, stride
        # A cached document is `[bos] + tokens + [eos]`; an input has 1 + len(caches) special tokens.
        lengths_nc = np.stack([np.diff(cache.offsets) - 2 for cache in caches], axis=1)
        self._room = sequence_length - 1 - len(caches)
        total_n = lengths_nc.sum(axis=1)
        empty_n = np.any(lengths_nc < 1, axis=1)
        long_n = (total_n > self._room) & ~empty_n
        if too_long == "refuse" and long_n.any():
            first = int(np.flatnonzero(long_n)[0])
            raise UserError(
                f"text {first + 1} has {total_n[first] + 1 + len(caches)} tokens with special tokens; "
                f"data.sequence_length is {sequence_length}"
            )
        left_out_n = empty_n | long_n if too_long == "skip" else empty_n
        if left_out_n.all():
            raise UserError(f"no text is left of {len(total_n)}: each is empty or too long")
        self.numbers = np.flatnonzero(~left_out_n)
        long = {"skip": "too long", "windows": "read in several windows"}.get(too_long, "truncated")
        self.tally = tallied(len(self.numbers), {"empty": empty_n.sum(), long: long_n.sum()}, "packed")
        self.windows_n = np.ones(len(total_n), np.int64)
        if too_long == "windows":
            for number in np.flatnonzero(long_n).tolist():
                counted = lengths_nc[number].tolist(), self._room, too_long, stride
                self.windows_n[number] = count_excerpts(*counted)
        self._text_w: np.ndarray = np.repeat(np.arange(len(total_n)), self.windows_n)
        self._first_n = np.cumsum(self.windows_n) - self.windows_n
        lengths_w = np.minimum(total_n, self._room)[self._text_w] + 1 + len(caches)
        packed = np.flatnonzero(~left_out_n[self._text_w])
        super().__init__(lengths_w, labels[self._text_w], packed, special_tokens, sequence_length)

    def excerpt(self, number: int, index: int = 0) -> list[np.ndarray]:
        """An excerpt of a text, or of both of a pair, by its number (`transformer.data.text.long_texts`)."""
        texts = [cache.document(number)[1:-1] for cache in self.caches]
        return excerpt(texts, self._room, self._too_long, self._stride, index)

    def texts(self, index: int) -> Sequence[np.ndarray]:
        """The tokens of an excerpt, of a text or of both texts of a pair, without special tokens."""
        number = int(self._text_w[index])
        return self.excerpt(number, int(index - self._first_n[number]))

    @property
    def examples(self) -> int:
        """The number of texts."""
        return len(self.numbers)

    def document(self, index: int) -> int:
        """The number of the text of an excerpt."""
        return int(self._text_w[index])

    def read(self, index: int, epoch: int) -> tuple[Sequence[np.ndarray], int]:
        """The `texts` of an index, and the index in the place of its label."""
        return self.texts(index), index

    def batch(self, rows: np.ndarray, epochs: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        batch = super().batch(rows, epochs)
        index_bk, there_bk = batch["labels"], batch["weights"] > 0
        text_bk = self._text_w[index_bk]
        batch["labels"] = np.where(there_bk, self.labels[index_bk], 0).astype(np.int32)
        batch["weights"] = np.where(there_bk, 1 / self.windows_n[text_bk], 0).astype(np.float32)
        if self._too_long == "windows":
            batch["texts"] = np.where(there_bk, text_bk, 0).astype(np.int32)
        return batch
