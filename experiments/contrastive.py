"""Contrastive learning of vectors: what belongs together is near, texts to texts or images to texts."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from experiments.base import Experiment
from experiments.evaluation.vector_scores import Retrieval
from transformer.data.images.captioned_images import CaptionedData, CaptionedDataConfig
from transformer.data.line_escapes import in_a_line
from transformer.data.pairs.embedding_pairs import EmbeddingData, EmbeddingDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.layers.attention.products import attention_products
from transformer.models.classifier import EmbedderConfig, TextEmbedder, unit
from transformer.models.vision import ImageEmbedder, VisionConfig
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Params, Put
from transformer.training.hooks import Evaluator, Hook
from transformer.training.losses.info_nce import ContrastiveLossConfig, info_nce
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig
from transformer.training.step import join_rows, split_rows
from transformer.visualization.embedding_map import draw_map

MAPPED = 24
"""The number of pairs on the map."""

SHARPEST = 100.0
"""The largest scale 1 / temperature of a learnt one, as in CLIP (Radford et al. 2021, section 2.5)."""


@dataclass(frozen=True)
class ContrastiveConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: EmbedderConfig
    data: EmbeddingDataConfig
    loss: ContrastiveLossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("query_length", "passage_length"):
            if (length := getattr(self.data, key)) > (most := self.model.max_length):
                raise UserError(f"data.{key}: {length} is longer than model.max_length {most}")
        check_widths(self)


def check_widths(config: Any) -> None:
    """Raises `UserError` if `loss.widths` are not below the width of the vectors."""
    width = config.model.width or config.model.d_model
    if not all(0 < part < width for part in config.loss.widths):
        raise UserError(f"loss.widths: {config.loss.widths}; expected numbers from 1 to {width - 1}")


class Contrastive(Experiment):
    """InfoNCE over the whole batch, whatever its microbatches and devices: of all passages of the batch, hard
    negatives too, which belongs to the query? With `widths` the mean over them and the whole width (Kusupati
    et al. 2022, Matryoshka representation learning, equation 1, over their number).

    Microbatches divide what computes the vectors: the forward pass keeps nothing else of it, and the backward
    pass computes each part again. Loss and gradient are those of the whole batch, memory is that of a part.
    Source: Gao et al. 2021 (GradCache), section 3.
    """

    Config: type = ContrastiveConfig
    whole_batch = True
    heads: tuple[str, ...] = ("project", "log_scale")
    Data: type = EmbeddingData
    inputs: tuple[str, ...] = ("queries", "query_lengths", "passages", "passage_lengths")
    """The arrays of a batch of which vectors are computed."""

    def __init__(self, config: Any, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        self.config = config
        self.data: Any = self.Data(config.data, tokenizer)
        vocab_size = config.model.entries(self.data.special_tokens.vocab_size)
        self.model = TextEmbedder(config.model, vocab_size)

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        tokens_bt = jnp.ones((1, 1), jnp.int32)
        params = self.model.init(rng, tokens_bt, tokens_bt)["params"]
        if not self.config.loss.learnt_temperature:
            return params
        log_scale = -jnp.log(jnp.float32(self.config.loss.temperature))
        return {**params, "log_scale": nn.LogicallyPartitioned(log_scale, ())}

    def texts(self, params: Params, tokens_bt: Any, lengths_b: Any, **options: Any) -> jax.Array:
        """The vectors (b, d) of texts; `options` are those of `self.model.apply`."""
        segments_bt = (jnp.arange(tokens_bt.shape[1]) < lengths_b[:, None]).astype(jnp.int32)
        return self.model.apply({"params": params}, tokens_bt, segments_bt, **options)

    def read(
        self, params: Params, batch: Batch, rng: jax.Array, train: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """The vectors of the queries (b, d) and of the passages (b, c, d) of some rows."""
        queries = self.queries(params, batch, train=train, rngs={"dropout": rng})
        b, c, t = batch["passages"].shape
        rows = batch["passages"].reshape(b * c, t), batch["passage_lengths"].reshape(b * c)
        rngs = {"dropout": jax.random.fold_in(rng, 1)}  # an equal text has other dropout
        return queries, self.texts(params, *rows, train=train, rngs=rngs).reshape(b, c, -1)

    def queries(self, params: Params, batch: Batch, **options: Any) -> jax.Array:
        """The vectors (b, d) of the queries of some rows."""
        return self.texts(params, batch["queries"], batch["query_lengths"], **options)

    def vectors(
        self, params: Params, batch: Batch, rng: jax.Array, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """`read` of a whole batch, in as many parts as microbatches."""
        parts = self.config.parallel.microbatches
        rows = {name: batch[name] for name in self.inputs}
        if parts == 1:
            return self.read(params, rows, jax.random.fold_in(rng, 0), train)

        def read(part: tuple[jax.Array, Batch]) -> tuple[jax.Array, jax.Array]:
            return self.read(params, part[1], jax.random.fold_in(rng, part[0]), train)

        numbered = jnp.arange(parts), split_rows(rows, parts)
        return join_rows(jax.lax.map(jax.checkpoint(read), numbered))

    def scale(self, params: Params) -> Any:
        """1 / temperature."""
        if not self.config.loss.learnt_temperature:
            return jnp.float32(1 / self.config.loss.temperature)
        return jnp.minimum(jnp.exp(params["log_scale"]), SHARPEST)

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per query; of the whole width `accuracy`, the share of queries whose own passage has
        the largest score; with `widths` the loss of each, `loss_of_32`, and with a learnt temperature
        `temperature`."""
        c, weights_b = self.config, batch["weights"]
        queries_bd, passages_bcd = self.vectors(params, batch, rng, train)
        scale = self.scale(params)
        ids, whole = (batch["query_ids"], batch["passage_ids"]), queries_bd.shape[1]
        losses, terms = [], {}
        for width in (*c.loss.widths, whole):
            parts = queries_bd[:, :width], passages_bcd[..., :width]
            query, passage = map(unit, parts) if c.model.normalize and width < whole else parts
            loss_b, right_b = info_nce(query, passage, *ids, scale, c.loss.symmetric)
            losses.append(loss_b)
            if c.loss.widths:
                terms[f"loss_of_{width}"] = Sum.of(jax.lax.stop_gradient(loss_b), weights_b)
        if c.loss.learnt_temperature:
            temperature_b = jnp.broadcast_to(jax.lax.stop_gradient(1 / scale), weights_b.shape)
            terms["temperature"] = Sum.of(temperature_b, weights_b)
        loss = Sum.of(jnp.mean(jnp.stack(losses), axis=0), weights_b)
        return {"loss": loss, "accuracy": Sum.of(right_b, weights_b)} | terms

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of queries."""
        return {"loss": jnp.sum(batch["weights"])}

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Retrieval among all passages of a split, and the evaluators of `evaluate.also`."""
        return {"eval": Retrieval(self, put, split), **self.other_evaluators(put, split)}

    @property
    def lengths(self) -> tuple[int, ...]:
        """The tokens of a query, and of each passage."""
        c = self.config.data
        return c.query_length, *[c.passage_length] * (len(self.data.fields("train")) - 1)

    @property
    def tokens_per_example(self) -> int:
        """Tokens of a query and its passages."""
        return sum(self.lengths)

    @property
    def attention_products(self) -> float:
        """See `Experiment`."""
        stack = self.config.model.stack()
        products = (length * attention_products(stack, length) for length in self.lengths)
        return sum(products) / self.tokens_per_example

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """A map of the first pairs of the validation split."""

        def mapped(params: Params) -> tuple[np.ndarray, list[str]]:
            split: Any = self.data.rows("validation")
            batch = split.batch(np.arange(min(MAPPED, len(split))))
            queries_bd, passages_bcd = self._mapped(params, {name: batch[name] for name in self.inputs})
            rows = zip(batch["passages"], batch["passage_lengths"], strict=True)
            passages = [self._shown(*row) for row in rows]
            queries = [f"? {text}" for text in self.shown_queries(batch, passages)]
            _, once = np.unique(batch["passage_ids"][:, 0], return_index=True)
            vectors = on_host(queries_bd), on_host(passages_bcd)[once, 0]
            return np.concatenate(vectors), [*queries, *(passages[i] for i in once)]

        return [self.pictures(folder, folder.maps, mapped, draw_map)]

    @functools.cached_property
    def _mapped(self) -> Any:
        return jax.jit(lambda params, batch: self.read(params, batch, jax.random.key(0)))

    def shown_queries(self, batch: Batch, passages: Sequence[str]) -> list[str]:
        """Labels of the queries of a batch, whose passages have these."""
        rows = zip(batch["queries"][:, None], batch["query_lengths"][:, None], strict=True)
        return [self._shown(*text) for text in rows]

    def _shown(self, tokens_ct: np.ndarray, lengths_c: np.ndarray) -> str:
        """The first of several texts, without special tokens."""
        return in_a_line(self.data.tokenizer.decode(tokens_ct[0, 1 : lengths_c[0] - 1].tolist())).strip()

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """Recall on the validation split."""
        recall = measured["eval/recall@10"]
        return [f"of {recall:.1%} of the validation queries the answer is among the first 10 passages"]

    example_mode = "embed"

    def example_flags(self) -> list[str]:
        """The first query of the validation split."""
        batch = self.data.rows("validation").batch(np.array([0]))
        return [f"--prompt={self._shown(batch['queries'], batch['query_lengths'])}"]

    def data_lines(self) -> list[str]:
        """The number of pairs."""
        rows: Any = self.train_data().rows  # type: ignore[attr-defined]
        negatives = len(self.lengths) - 2
        return [f"{len(rows):,} training pairs" + (f", {negatives} hard negatives each" if negatives else "")]


LACKED = {"parametrization": "standard", "lora_rank": 0, "head_dropout": 0.0}
"""Key of `image` -> its only value: the image tower has no muP, no LoRA and no head."""


@dataclass(frozen=True)
class ImageTextConfig(RunConfig):
    """The config of a run of two towers: `model` reads texts, `image` images."""

    model: EmbedderConfig
    image: VisionConfig
    data: CaptionedDataConfig
    loss: ContrastiveLossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if (length := self.data.passage_length) > (most := self.model.max_length):
            raise UserError(f"data.passage_length: {length} is longer than model.max_length {most}")
        for key, expected in LACKED.items():
            if (value := getattr(self.image, key)) != expected:
                raise UserError(f"image.{key}: {value!r}; expected {expected!r}: the image tower has none")
        try:
            self.image.length(self.data.image_size)
        except UserError as error:
            raise UserError(f"image.{error}") from None
        check_widths(self)

    def function(self) -> dict[str, Any]:
        """See `RunConfig`."""
        return super().function() | {f"image.{key}": value for key, value in self.image.function().items()}


class ImageText(Contrastive):
    """As `Contrastive`, where queries are images and the passage of each is its text.

    Source: Radford et al. 2021 (CLIP), section 2.3.
    """

    Config = ImageTextConfig
    inputs = ("images", "passages", "passage_lengths")
    heads = (*Contrastive.heads, "image")
    Data = CaptionedData

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        size, channels = self.config.data.image_size, self.config.data.channels
        images_bhwc = jnp.zeros((1, size, size, channels), jnp.uint8)
        tower = self._tower().init(jax.random.fold_in(rng, 1), images_bhwc)["params"]
        return {**super().init(rng), "image": tower}

    def queries(self, params: Params, batch: Batch, **options: Any) -> jax.Array:
        """The vectors (b, d) of the images of some rows."""
        x_bd = self._tower().apply({"params": params["image"]}, batch["images"], **options)
        return unit(x_bd) if self.config.model.normalize else x_bd

    def shown_queries(self, batch: Batch, passages: Sequence[str]) -> list[str]:
        """The texts of the images."""
        return [*passages]

    def example_flags(self) -> list[str]:
        """The text of the first image of the validation split."""
        return [f"--prompt={self.data.texts('validation')[0]}"]

    def _tower(self, pooling: str = "") -> ImageEmbedder:
        c = self.config
        return ImageEmbedder(c.image, c.model.width or c.model.d_model, pooling)

    @property
    def image_config(self) -> VisionConfig:
        """The config of the model that reads images."""
        return self.config.image

    def image_vectors(self, params: Params, images_bhwc: Any, pooling: str) -> jax.Array:
        """The vectors (b, d) of images by a pooling, not normalised."""
        return self._tower(pooling).apply({"params": params["image"]}, images_bhwc)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The patches of an image, and the tokens of its text."""
        return self.config.image.length(self.config.data.image_size), self.config.data.passage_length

    @property
    def attention_products(self) -> float:
        """See `Experiment`."""
        stacks = self.config.image.stack(), self.config.model.stack()
        parts = zip(stacks, self.lengths, strict=True)
        return sum(n * attention_products(stack, n) for stack, n in parts) / self.tokens_per_example
