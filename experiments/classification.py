"""Text classification: one label per text, or per pair of texts."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.support.label_objective import LabelObjective
from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.labels import MAX_LISTED_LABELS, remarks
from transformer.data.line_escapes import in_a_line
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding.generation import pad_encoder_inputs
from transformer.devices import on_host
from transformer.evaluation.attention_weights import AttentionMap, encoder_attention, first_tokens
from transformer.evaluation.classifier_scores import (
    mean_logits,
    prediction_table,
    ranked_labels,
)
from transformer.models.classifier import ClassifierConfig, TextClassifier
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Params
from transformer.training.hooks import Hook
from transformer.training.losses.label_losses import LabelLoss, LabelLossConfig
from transformer.training.run_config import RunConfig, check_row_length
from transformer.visualization.attention_maps import draw_attention
from transformer.visualization.classifier_plots import draw_classification

AT_ONCE = 32
"""Batch size of `predict`, in texts and in windows."""

LONG = {
    "cut": "they are truncated",
    "skip": "they are truncated",
    "head_tail": "only their first and their last tokens are read",
}
"""Value of `data.too_long` -> what is read of texts longer than a row, except in windows."""


@dataclass(frozen=True)
class ClassificationConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: ClassifierConfig
    data: LabelledDataConfig
    loss: LabelLossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)


class Classification(LabelObjective):
    """An encoder with a classification head, trained on texts packed into rows."""

    Config = ClassificationConfig
    heads = ("head", "pooler", "transform", "transform_norm")

    def __init__(
        self,
        config: ClassificationConfig,
        tokenizer: Tokenizer | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """`tokenizer` and `labels` are those of the run folder; by default the training data determine
        them."""
        self.config = config
        self.data = LabelledData(config.data, tokenizer, labels)
        vocab_size = config.model.entries(self.data.special_tokens.vocab_size)
        self.model = TextClassifier(config.model, vocab_size, len(self.data.labels))
        self.label_loss = LabelLoss(config.loss, self.data)

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        tokens_bt = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, tokens_bt, tokens_bt, 1)["params"]

    def logits(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> jax.Array:
        """(b, k, c), for k texts per row."""
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

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each text one line: its label, and all labels with their probabilities, the means over its
        windows if it is read in several. The result is deterministic: `seed` is ignored.

        Raises:
          UserError: a text with a `problem`.
        """
        inputs = map(self.data.encoder_inputs, self._noting(texts, first))
        while batch := list(itertools.islice(inputs, AT_ONCE)):
            yield from ranked_labels(self._read(params, batch), self.data.labels)

    def problem(self, text: str) -> str:
        """Why a text cannot be answered: it should be two, or is too long, with `data.too_long` "refuse"."""
        c = self.config.data
        if c.second_field and "\t" not in text:
            return f"has no tab: expected two texts, {' and '.join(self.data.reads)}, with a tab between them"
        if c.too_long != "refuse" or (length := self.data.length(text)) <= c.sequence_length:
            return ""
        most = f"data.sequence_length is {c.sequence_length}, and data.too_long refuses"
        return f"has {length} tokens, special ones among them; {most}"

    def _noting(self, texts: Iterable[str], before: int) -> Iterator[str]:
        """The texts unchanged. Raises on a text with a `problem`, and prints a note at the end if some are
        truncated."""
        c, long = self.config.data, 0
        for text in self.checked(texts, before):
            long += c.too_long != "windows" and self.data.length(text) > c.sequence_length
            yield text
        if long:
            count = f"{long:,} texts are longer than {c.sequence_length} tokens"
            self.note("long", f"{count}: {LONG[c.too_long]}")

    def attention(self, params: Params, text: str, layer: int = -1) -> AttentionMap:
        """The attention weights (h, t, t) of a layer (-1: the last) over a text in the format of `predict`,
        or its first window, and the names of its query and key tokens."""
        return encoder_attention(self.model, params, self.data.encoder_inputs(text)[0], self.data, layer)

    def predictions(self, params: Params, split: str) -> Iterator[str]:
        """A table of every example of a split, as `prediction_table` makes it."""
        return prediction_table(self.examples(params, split), self.data.reads, self.data.labels)

    def examples(self, params: Params, split: str) -> Iterator[tuple[list[str], int, np.ndarray]]:
        """(texts, label, logits (c,)) of every example of a split that is evaluated, in order; `texts` are
        one text, or the two of a pair, and `label` is an index."""
        rows, sources = self.data.rows(split), self.data.sources(split)
        build, numbers = self.data.special_tokens.build_input, iter(rows.numbers.tolist())
        while batch := list(itertools.islice(numbers, AT_ONCE)):
            inputs = [[build(rows.excerpt(n, i)) for i in range(rows.windows_n[n])] for n in batch]
            for number, logits_c in zip(batch, self._read(params, inputs), strict=True):
                yield [source.text(number) for source in sources], int(rows.label_n[number]), logits_c

    def _read(self, params: Params, inputs: list[list[Any]]) -> np.ndarray:
        """The logits (n, c) of texts, each read in one or several windows."""
        frames, length = [frame for windows in inputs for frame in windows], self.config.data.sequence_length
        logits = []
        for start in range(0, len(frames), AT_ONCE):
            some = frames[start : start + AT_ONCE]
            arrays = pad_encoder_inputs(some, AT_ONCE, length)
            logits.append(on_host(self._logits(params, *arrays))[: len(some)])
        return mean_logits(np.concatenate(logits), np.array([*map(len, inputs)]))

    @functools.cached_property
    def _logits(self) -> Callable[..., jax.Array]:
        def logits(params: Params, tokens_bt: Any, types_bt: Any, segments_bt: Any) -> jax.Array:
            return self.model.apply({"params": params}, tokens_bt, segments_bt, 1, types_bt=types_bt)[:, 0]

        return jax.jit(logits)

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Plots of the last evaluation, and attention maps of a validation text."""

        def attend(params: Params) -> AttentionMap | None:
            if not self.config.model.has_attention:
                return None
            return first_tokens(self.attention(params, "\t".join(next(self.data.texts("validation"))[0])))

        drawn = lambda params: self._validation.drawn(params)  # noqa: E731
        return [
            self.pictures(folder, folder.classes, drawn, draw_classification),
            self.pictures(folder, folder.attention, attend, draw_attention),
        ]

    def data_lines(self) -> list[str]:
        """The frequency of each label, and the share of padding."""
        rows: Any = self.train_data().rows  # type: ignore[attr-defined]
        counts = self.data.label_counts("train")
        shares = zip(self.data.labels, counts / counts.sum(), strict=True)
        filled = f"{len(rows):,} rows, {rows.padding:.1%} of them padding"
        commonest = (
            sorted(shares, key=lambda pair: -pair[1])[:MAX_LISTED_LABELS]
            if len(counts) > MAX_LISTED_LABELS
            else shares
        )
        listed = ", ".join(f"{in_a_line(label)} {share:.1%}" for label, share in commonest)
        more = f" and {len(counts) - MAX_LISTED_LABELS} more" if len(counts) > MAX_LISTED_LABELS else ""
        texts = f"{len(rows.numbers):,} training texts"
        if (windows := rows.windows_n[rows.numbers].sum()) > len(rows.numbers):
            texts = f"{windows:,} windows of {texts}"
        return [f"{texts} in {filled}: {listed}{more}", *remarks(self.data.labels)]

    def example_flags(self) -> list[str]:
        """The beginning of the first line of the validation split that is not only white space."""
        lines = (line for texts, _ in self.data.texts("validation") for line in "\t".join(texts).splitlines())
        return [f"--prompt={next(filter(str.strip, lines), '')[:80]}"]
