"""Image classification: an encoder over the patches of an image."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evaluators import named_evaluators
from transformer.data.image_sources import save_pixels
from transformer.data.images import ImageData, ImageDataConfig
from transformer.data.labels import remarks
from transformer.decoding.generation import fill
from transformer.errors import UserError
from transformer.evaluation.classification import (
    classification_evaluator,
    prediction_table,
    ranked_labels,
)
from transformer.models.vision import VisionConfig, VisionTransformer
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Experiment, Params, Put
from transformer.training.hooks import Evaluator, Hook, Pictures
from transformer.training.label_losses import LabelLoss, LabelLossConfig
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig
from transformer.training.state import State
from transformer.training.throughput import matmul_parameters, train_flops_per_token
from transformer.visualization.classification import draw_classification

AT_ONCE = 32
"""Images that are classified together by `predict`."""


@dataclass(frozen=True)
class VisionRunConfig(RunConfig):
    """A whole run: one group of keys for each part."""

    model: VisionConfig
    data: ImageDataConfig
    loss: LabelLossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.model.length(self.data.image_size)
        except UserError as error:
            raise UserError(f"model.{error}") from None


class Vision(Experiment):
    """A Vision Transformer, trained on images that are changed a little each time."""

    Config = VisionRunConfig
    heads = ("head",)

    def __init__(self, config: VisionRunConfig, labels: Sequence[str] | None = None) -> None:
        """`labels` are the run folder's; without them they are those of the training data."""
        self.config = config
        self.data = ImageData(config.data, labels)
        self.model = VisionTransformer(config.model, len(self.data.labels))
        self.label_loss = LabelLoss(config.loss, self.data)
        self._sample = Path()

    def init(self, rng: jax.Array) -> Any:
        """The model's parameters, boxed with their logical axes."""
        size, channels = self.config.data.image_size, self.config.data.channels
        return self.model.init(rng, jnp.zeros((1, size, size, channels), jnp.uint8))["params"]

    def logits(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> jax.Array:
        """(b, c)."""
        return self.model.apply({"params": params}, batch["images"], train, rngs={"dropout": rng})

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, -log p(label) in nats, smoothed in training only, and `accuracy`."""
        return self.label_loss.terms(self.logits(params, batch, rng, train), batch, train)

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of examples, each counted as the loss counts it."""
        return self.label_loss.weigh(batch)

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Loss, accuracy, F1 and calibration error of a split."""
        evaluator = classification_evaluator(self, split, put)
        if split == "validation":
            self._validation = evaluator  # for pictures and the closing lines
        return {"eval": evaluator, **named_evaluators(self, put, split)}

    @property
    def tokens_per_example(self) -> int:
        """The patches of an image, and the class token where there is one."""
        return self.config.model.length(self.config.data.image_size)

    def flops_per_token(self, params: Params) -> float:
        """6 N + 12 n (h k) t, of one patch."""
        c = self.config.model
        width, length = c.num_heads * c.key_width, self.tokens_per_example
        return train_flops_per_token(matmul_parameters(params), c.num_layers, width, length)

    def problem(self, text: str) -> str:
        """There is no such file."""
        return "" if Path(text).is_file() else f"names {text!r}, which is no file"

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each path of an image one line: its label, and all labels with their probabilities. Nothing is
        random in it: `seed` changes nothing."""
        images = map(self.data.read, texts)
        while batch := list(itertools.islice(images, AT_ONCE)):
            yield from ranked_labels(self._read(params, batch), self.data.labels)

    def predictions(self, params: Params, split: str) -> Iterator[str]:
        """A table of every example of a split, as `prediction_table` makes it."""
        return prediction_table(self.examples(params, split), ["image"], self.data.labels)

    def examples(self, params: Params, split: str) -> Iterator[tuple[list[str], int, np.ndarray]]:
        """Every image of a split in their order, by its file or number, with the number of its label, and its
        logits (c,)."""
        rows, places = self.data.rows(split), self.data.places(split)
        numbers = iter(range(len(rows)))
        while some := list(itertools.islice(numbers, AT_ONCE)):
            batch = rows.batch(np.array(some))
            found = self._read(params, list(batch["images"]))
            for index, label, logits_c in zip(some, batch["labels"], found, strict=True):
                yield [places[index]], int(label), logits_c

    def _read(self, params: Params, images: list[Any]) -> np.ndarray:
        """The logits (n, c) of at most `AT_ONCE` images."""
        return np.asarray(self._logits(params, np.stack(fill(images, AT_ONCE))))[: len(images)]

    @functools.cached_property
    def _logits(self) -> Callable[..., jax.Array]:
        return jax.jit(lambda params, images_bhwc: self.model.apply({"params": params}, images_bhwc))

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Pictures of what the last evaluation found, and at the end an image to try,
        samples/<its label>.png."""
        first = self.data.rows("validation").batch(np.array([0]))
        self._sample = folder.samples / f"{self.data.labels[first['labels'][0]]}.png"
        c = self.config.train
        confusion = Pictures(
            c.sample_every,
            folder.classes,
            lambda params: self._validation.drawn(params),
            draw_classification,
            folder.events,
            c.writers,
        )
        return [confusion, SampleImage(first["images"][0], self._sample)]

    def opening_lines(self) -> list[str]:
        """How many images there are, of how many patches, and how often the commonest label occurs."""
        counts, size = self.data.label_counts("train"), self.config.data.image_size
        common = f"{self.data.labels[counts.argmax()]!r} {counts.max() / counts.sum():.1%}"
        return [
            f"{counts.sum():,} training images of {size} x {size}, {self.tokens_per_example} patches each; "
            f"{len(counts)} labels, the commonest {common}",
            *remarks(self.data.labels),
        ]

    def example_flags(self) -> list[str]:
        """The first image of the validation split."""
        return [f"--prompt={self._sample}"]

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """The accuracy beside that of always predicting the commonest label."""
        return [self._validation.accuracy_line()]


class SampleImage(Hook):
    """Writes an image (h, w, c) to a file after the last step, so that there is one to try."""

    def __init__(self, image_hwc: np.ndarray, path: Path):
        super().__init__()
        self.image, self.path = image_hwc, path

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Writes on the first process."""
        if jax.process_index() == 0:
            save_pixels(self.image, self.path)
