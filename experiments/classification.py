"""Text classification: one label for each text, or for each pair of texts."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.attending import AttendingEncoder, Look, pictured
from experiments.labelling import Labelling, LabelLossConfig
from experiments.objective import check_row_length
from experiments.pictures import AttentionMaps
from transformer.data.labelled import LabelledData, LabelledDataConfig
from transformer.data.labels import MANY, remarks
from transformer.data.tokenizers import Tokenizer
from transformer.decoding.batching import pad_framed
from transformer.models.classifier import ClassifierConfig, TextClassifier
from transformer.training.experiment import Batch, Params
from transformer.training.flops import matmul_parameters, train_flops_per_token
from transformer.training.hooks import Hook
from transformer.training.run import RunConfig

AT_ONCE = 32
"""Texts that are classified together by `predict`."""


@dataclass(frozen=True)
class ClassificationConfig(RunConfig):
    """A whole run: one group of keys for each part, listed in `configs/base/`."""

    model: ClassifierConfig
    data: LabelledDataConfig
    loss: LabelLossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)


class Classification(Labelling, AttendingEncoder):
    """An encoder with a classifier on top, trained on texts that share rows."""

    Config = ClassificationConfig

    def __init__(
        self,
        config: ClassificationConfig,
        tokenizer: Tokenizer | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """`tokenizer` and `labels` are the run folder's; without them they are made of the training data."""
        self.config = config
        self.data = LabelledData(config.data, tokenizer, labels)
        self.model = TextClassifier(config.model, self.data.markers.vocab_size, len(self.data.labels))

    def init(self, rng: jax.Array) -> Any:
        """The model's parameters, boxed with their logical axes."""
        one = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, one, one, 1)["params"]

    def logits(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> jax.Array:
        """(b, k, c): k texts a row."""
        return self.model.apply(
            {"params": params},
            batch["tokens"],
            batch["segments"],
            batch["labels"].shape[1],
            positions_bt=batch["positions"],
            types_bt=batch["types"],
            train=train,
            rngs={"dropout": rng},
        )

    @property
    def tokens_per_example(self) -> int:
        """The length of a row."""
        return self.config.data.sequence_length

    def flops_per_token(self, params: Params) -> float:
        """6 N: attention over texts that share a row is little beside it (see `training.flops`)."""
        return train_flops_per_token(matmul_parameters(params), 0, 0, 0)

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each text one line: its label, and all labels with their probabilities. Of a text that is too
        long the beginning counts. Nothing is random in it: `seed` changes nothing."""

        framed = map(self.data.frame, texts)
        while batch := list(itertools.islice(framed, AT_ONCE)):
            yield from self.describe(self._read(params, batch))

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        """The fields of the texts."""
        return tuple(self.data.reads)

    def examples(self, params: Params, split: str) -> Iterator[tuple[list[str], int, np.ndarray]]:
        """Every text that is measured of a split, or both of a pair, in their order."""
        rows, sources = self.data.rows(split), self.data.sources(split)
        length = self.config.data.sequence_length
        kept = iter(rows.kept.tolist())
        while batch := list(itertools.islice(kept, AT_ONCE)):
            found = self._read(params, [self.data.markers.frame(rows.texts(i), length) for i in batch])
            for index, logits_c in zip(batch, found, strict=True):
                yield [source.text(index) for source in sources], int(rows.labels[index]), logits_c

    def _read(self, params: Params, frames: list[Any]) -> np.ndarray:
        """The logits (n, c) of at most `AT_ONCE` texts."""
        arrays = pad_framed(frames, AT_ONCE, self.config.data.sequence_length)
        return np.asarray(self._logits(params, *arrays))[: len(frames)]

    @functools.cached_property
    def _logits(self) -> Callable[..., jax.Array]:
        def logits(params: Params, tokens_bt: Any, types_bt: Any, segments_bt: Any) -> jax.Array:
            return self.model.apply({"params": params}, tokens_bt, segments_bt, 1, types_bt=types_bt)[:, 0]

        return jax.jit(logits)

    def hooks(self, workdir: Path) -> list[Hook]:
        """Pictures of what the last evaluation found, and of where the tokens of a text look."""

        def look(params: Params) -> Look:
            return pictured(self.attention(params, "\t".join(next(self.data.texts("validation"))[0])))

        return [*super().hooks(workdir), AttentionMaps(self.config.train, look, workdir)]

    def opening_lines(self) -> list[str]:
        """How often each label occurs, how the texts fill their rows, and what was done with those that do
        not fit."""
        rows: Any = self.train_data().rows  # type: ignore[attr-defined]
        counts = self.data.label_counts("train")
        shares = zip(self.data.labels, counts / counts.sum(), strict=True)
        filled = f"{len(rows):,} rows, {rows.padding:.1%} of them padding"
        commonest = sorted(shares, key=lambda each: -each[1])[:MANY] if len(counts) > MANY else shares
        listed = ", ".join(f"{label} {share:.1%}" for label, share in commonest)
        more = f" and {len(counts) - MANY} more" if len(counts) > MANY else ""
        lines = [f"{len(rows.kept):,} training texts in {filled}: {listed}{more}", *remarks(self.data.labels)]
        if rows.cut:
            most = self.config.data.sequence_length
            lines.append(f"{rows.cut:,} texts are longer than {most} tokens: their ends are cut off")
        if rows.skipped:
            lines.append(f"{rows.skipped:,} texts are left out: they are empty or too long")
        return lines

    def example_flags(self) -> list[str]:
        """The beginning of the first text of the validation split."""
        first = "\t".join(next(self.data.texts("validation"))[0])
        return [f"--prompt={first.splitlines()[0][:80]}"]
