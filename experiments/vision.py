"""Image classification: an encoder over the patches of an image."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from experiments.support.label_objective import LabelObjective
from transformer.data.encoders.labels import remarks
from transformer.data.images.image_sources import save_pixels
from transformer.data.images.images import ImageData, ImageDataConfig
from transformer.decoding.generation import fill
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.evaluation.classifier_scores import prediction_table, ranked_labels
from transformer.layers.attention.products import attention_products
from transformer.models.vision import VisionConfig, VisionTransformer, resized_positions
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Params
from transformer.training.hooks import Hook
from transformer.training.losses.label_losses import LabelLoss, LabelLossConfig
from transformer.training.run_config import RunConfig
from transformer.training.state import State
from transformer.visualization.classifier_plots import draw_classification

AT_ONCE = 32
"""Batch size of `predict`."""

HEADLESS = "start a run from it, config.initialize_from, or --mode=embed"
"""The uses of a model without a head."""

TABLE = "trunk/position/table"
"""The path of the learned positions among the parameters."""


@dataclass(frozen=True)
class VisionRunConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: VisionConfig
    data: ImageDataConfig
    loss: LabelLossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.model.length(self.data.image_size)
        except UserError as error:
            raise UserError(f"model.{error}") from None

    @property
    def grid(self) -> tuple[int, int]:
        """See `VisionConfig.grid`."""
        return self.model.grid(self.data.image_size)

    def function(self) -> dict[str, Any]:
        """See `RunConfig`: and the size of images where positions count their patches, row by row."""
        return super().function() | ({"data.image_size": self.data.image_size} if self._counting else {})

    def effect(self, key: str) -> str | None:
        """See `RunConfig`."""
        resized = key == "data.image_size" and self._counting == {"learned"}
        return "for which learned positions are interpolated" if resized else super().effect(key)

    @property
    def _counting(self) -> set[str]:
        """The positions and patterns of the layers that depend on the number of a patch."""
        kinds = self.model.kinds.values()
        return {name for kind in kinds for name in (kind.position, kind.pattern)} - {"none", "full"}


class Vision(LabelObjective):
    """A Vision Transformer, trained on augmented images (flips and shifts)."""

    Config = VisionRunConfig
    heads = ("head",)

    def __init__(self, config: VisionRunConfig, labels: Sequence[str] | None = None) -> None:
        """`labels` are those of the run folder; by default those of the training data."""
        self.config = config
        self.data = ImageData(config.data, labels)
        self.model = VisionTransformer(config.model, len(self.data.labels))
        self.label_loss = LabelLoss(config.loss, self.data)
        self._sample = Path()

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        size, channels = self.config.data.image_size, self.config.data.channels
        return self.model.init(rng, jnp.zeros((1, size, size, channels), jnp.uint8))["params"]

    def logits(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> jax.Array:
        """(b, c).

        Raises:
          UserError: the model has no head, as it was imported without one.
        """
        if not self.data.labels:
            raise UserError(f"a model without a head has no classes; {HEADLESS}")
        return self.model.apply({"params": params}, batch["images"], train, rngs={"dropout": rng})

    @property
    def image_config(self) -> VisionConfig:
        """The config of the model that reads images."""
        return self.config.model

    def image_vectors(self, params: Params, images_bhwc: Any, pooling: str) -> jax.Array:
        """The vectors (b, d) of images by a pooling, not normalised."""
        return VisionTransformer(self.config.model, 0, pooling).apply({"params": params}, images_bhwc)

    def converted(self, origin: Any) -> Any:
        """See `Experiment`: with the positions of the patches of these images."""
        here, there = self.config, origin.config
        if not isinstance(there, VisionRunConfig):
            return origin
        learned = here.model.position == there.model.position == "learned"
        same = here.grid == there.grid and here.model.max_length == there.model.max_length
        rows = here.model.max_length + here.model.position_offset
        return ResizedPositions(origin, there.grid, here.grid, rows) if learned and not same else origin

    @property
    def tokens_per_example(self) -> int:
        """The number of patches of an image, plus one for a class token."""
        return self.config.model.length(self.config.data.image_size)

    @property
    def attention_products(self) -> float:
        """See `Experiment`."""
        return attention_products(self.config.model.stack(), self.tokens_per_example)

    def problem(self, text: str) -> str:
        """Why an image cannot be classified: there are no classes, or it is not a file."""
        if not self.data.labels:
            return f"has no classes to be one of; {HEADLESS}"
        return "" if Path(text).is_file() else f"names {text!r}, which is not a file"

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each path of an image one line: its label, and all labels with their probabilities. The result
        is deterministic: `seed` is ignored."""
        images = map(self.data.read, self.checked(texts, first))
        while batch := list(itertools.islice(images, AT_ONCE)):
            yield from ranked_labels(self._read(params, batch), self.data.labels)

    def predictions(self, params: Params, split: str) -> Iterator[str]:
        """A table of every example of a split, as `prediction_table` makes it."""
        return prediction_table(self.examples(params, split), ["image"], self.data.labels)

    def examples(self, params: Params, split: str) -> Iterator[tuple[list[str], int, np.ndarray]]:
        """([file or number], label, logits (c,)) of every image of a split, in order; `label` is an index."""
        rows, places = self.data.rows(split), self.data.places(split)
        numbers = iter(range(len(rows)))
        while some := list(itertools.islice(numbers, AT_ONCE)):
            batch = rows.batch(np.array(some))
            logits_nc = self._read(params, list(batch["images"]))
            for index, label, logits_c in zip(some, batch["labels"], logits_nc, strict=True):
                yield [places[index]], int(label), logits_c

    def _read(self, params: Params, images: list[Any]) -> np.ndarray:
        """The logits (n, c) of at most `AT_ONCE` images."""
        return on_host(self._logits(params, np.stack(fill(images, AT_ONCE))))[: len(images)]

    @functools.cached_property
    def _logits(self) -> Callable[..., jax.Array]:
        return jax.jit(lambda params, images_bhwc: self.model.apply({"params": params}, images_bhwc))

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Plots of the last evaluation, and at the end an image to try `predict` on, samples/<its
        label>.png."""
        first = self.data.rows("validation").batch(np.array([0]))
        self._sample = folder.samples / file_name(self.data.labels[first["labels"][0]])
        drawn = lambda params: self._validation.drawn(params)  # noqa: E731
        confusion = self.pictures(folder, folder.classes, drawn, draw_classification)
        return [confusion, SampleImage(first["images"][0], self._sample)]

    def data_lines(self) -> list[str]:
        """The number of images and of patches, and the most frequent label."""
        counts, size = self.data.label_counts("train"), self.config.data.image_size
        common = f"{self.data.labels[counts.argmax()]!r} {counts.max() / counts.sum():.1%}"
        return [
            f"{counts.sum():,} training images of {size} x {size}, {self.tokens_per_example} patches each; "
            f"{len(counts)} labels, most frequent {common}",
            *remarks(self.data.labels),
        ]

    def example_flags(self) -> list[str]:
        """The first image of the validation split."""
        return [f"--prompt={self._sample}"]


def file_name(label: str) -> str:
    """The name of an image of a label, which is a name from elsewhere: it must not lead out of a folder."""
    return (re.sub(r"[^\w .+-]", "_", label)[:80].lstrip(".") or "_") + ".png"


class SampleImage(Hook):
    """Writes an image (h, w, c) to a file after the last step, to try `predict` on."""

    def __init__(self, image_hwc: np.ndarray, path: Path):
        super().__init__()
        self.image, self.path = image_hwc, path

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Writes the image on the first process."""
        if jax.process_index() == 0:
            save_pixels(self.image, self.path)


@dataclass(frozen=True)
class ResizedPositions:
    """An `Origin` of an image model, with its learned positions for another grid of patches; see
    `resized_positions`."""

    origin: Any
    before: tuple[int, int]
    after: tuple[int, int]
    rows: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.origin, name)

    def __str__(self) -> str:
        return str(self.origin)

    def shapes(self) -> dict[str, tuple]:
        """See `Origin`."""
        shapes = self.origin.shapes()
        (_, width), dtype = shapes[TABLE]
        return shapes | {TABLE: ((self.rows, width), dtype)}

    def read(self, abstract: Params) -> Params:
        """See `Origin`."""
        flat = traverse_util.flatten_dict(abstract, sep="/")
        if (target := flat.get(TABLE)) is None:
            return self.origin.read(abstract)
        shape, _ = self.origin.shapes()[TABLE]
        stored = jax.ShapeDtypeStruct(shape, target.dtype, sharding=_whole(target.sharding))
        params = self.origin.read(traverse_util.unflatten_dict(flat | {TABLE: stored}, sep="/"))
        flat = traverse_util.flatten_dict(params, sep="/")
        resize = functools.partial(resized_positions, before=self.before, after=self.after, rows=self.rows)
        flat[TABLE] = jax.jit(resize, out_shardings=target.sharding)(flat[TABLE])
        return traverse_util.unflatten_dict(flat, sep="/")


def _whole(sharding: Any) -> Any:
    """The sharding of an array of another shape that is whole on each of the same devices."""
    is_named = isinstance(sharding, NamedSharding)
    return NamedSharding(sharding.mesh, PartitionSpec()) if is_named else sharding
