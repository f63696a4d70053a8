"""Images with texts, captions or the names of classes: from a config's `data` group to batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from transformer.config import Place
from transformer.data.cache.disk_cache import load_array
from transformer.data.corpus import check_size, read_tokenizer
from transformer.data.encoders.labels import find_labels
from transformer.data.images.images import ImageData, ImageDataConfig, ImageRows, names_of
from transformer.data.loader import HostBatch, Rows
from transformer.data.pairs.embedding_pairs import Length
from transformer.data.sources.base import tallied
from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.data.tokenization.tokenizers import TOKENIZERS, Tokenizer
from transformer.errors import UserError


@dataclass(frozen=True)
class CaptionedDataConfig(ImageDataConfig):
    """Images with texts: `label_field` is the caption, or the class."""

    # texts of the classes, in the order of their labels; (): the labels are the texts
    names: tuple[str, ...] = ()
    tokenizer: Place = "bytes"  # bytes, characters, bpe or words (of the training texts), or a tokenizer.json
    vocab_size: int = 4096  # vocabulary size of bpe and words
    # most tokens of a text, [CLS] and [SEP] among them; longer ones are truncated
    passage_length: Length = 32

    checks: ClassVar = {**ImageDataConfig.checks, "tokenizer": check_size, "vocab_size": check_size}

    @property
    def longest(self) -> int:
        """The most tokens of a text."""
        return self.passage_length


class CaptionedData(ImageData):
    """The images and texts of a config.

    Raises:
      UserError: as `ImageData`; `names` are not as many as there are classes; there is no such tokenizer.
    """

    config: CaptionedDataConfig

    def __init__(self, config: CaptionedDataConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        super().__init__(config, labels=())  # a caption need not be one of training
        self._texts: dict[str, str] = {}
        if config.names:
            labels = find_labels(names_of(*self._prepared("train")), "source")
            if len(labels) != len(config.names):
                raise UserError(
                    f"data.names: {len(config.names)} names; expected {len(labels)}, one for each class"
                )
            self._texts = dict(zip(labels, config.names, strict=True))
        self.tokenizer = tokenizer or self._make_tokenizer()
        self.special_tokens = SpecialTokens.of(self.tokenizer)

    def kept(self) -> dict[str, Any]:
        """The tokenizer."""
        return {"tokenizer": self.tokenizer}

    def fields(self, split: str) -> tuple[str, ...]:
        """The image and its text."""
        return self.config.image_field, self.config.label_field

    def texts(self, split: str) -> list[str]:
        """The text of each image of a split.

        Raises:
          UserError: a class that the training data do not have, with `names`.
        """
        labels = names_of(*self._prepared(split))
        if self._texts and (unknown := {*labels} - {*self._texts}):
            raise UserError(f"data.names: the class {min(unknown)!r} is not one of training")
        return [self._texts[label] if self._texts else label for label in labels]

    def rows(self, split: str) -> "CaptionedRows":  # type: ignore[override]
        """The images and texts of a split, prepared on first use."""
        folder, indices = self._prepared(split)
        arguments = self.tokenizer, self.special_tokens, self.config.passage_length
        return CaptionedRows(load_array(folder / "images.npy"), indices, self.texts(split), *arguments)

    def _make_tokenizer(self) -> Tokenizer:
        name, kind = self.config.tokenizer, TOKENIZERS.get(self.config.tokenizer)
        if kind is None:
            return read_tokenizer(name)
        texts = self.texts("train") if kind.learns else ()
        return Tokenizer.train(name, texts, self.config.vocab_size if kind.least_size else 0)


class CaptionedRows(Rows):
    """An image and its text a row: `images` (h, w, c) uint8; `passages`, `passage_lengths`, `passage_ids` and
    `weights` as those of `EmbeddingRows`, with one passage; `query_ids`, the number of the image."""

    def __init__(
        self,
        images_nhwc: np.ndarray,
        indices: np.ndarray,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        special_tokens: SpecialTokens,
        length: int,
    ) -> None:
        """`indices` are those of the rows among all `images_nhwc`; `texts` are those of the rows."""
        numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        self._images = ImageRows(images_nhwc, np.array([numbers[text] for text in texts], np.int32), indices)
        self._tokens_mt, self._lengths_m = (
            np.zeros((len(numbers), length), np.int32),
            np.zeros(len(numbers), np.int32),
        )
        long = 0
        for text, i in numbers.items():
            ids = np.array(tokenizer.encode(text), np.int32)
            frame, _ = special_tokens.build_input([ids[: length - 2]])
            self._tokens_mt[i, : len(frame)], self._lengths_m[i] = frame, len(frame)
            long += len(ids) > length - 2
        self.tally = tallied(len(texts), {"truncated": long})

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, rows: np.ndarray) -> HostBatch:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        images, real_b = self._images.batch(rows), rows >= 0
        number_b = images["labels"]
        return {
            "images": images["images"],
            "passages": self._tokens_mt[number_b][:, None],
            "passage_lengths": np.where(real_b, self._lengths_m[number_b], 0)[:, None],
            "query_ids": np.where(real_b, rows, -1).astype(np.int32),
            "passage_ids": np.where(real_b, number_b, -1).astype(np.int32)[:, None],
            "weights": images["weights"],
        }

    def documents(self, rows: np.ndarray) -> list[np.ndarray]:
        """See `ImageRows`."""
        return self._images.documents(rows)
