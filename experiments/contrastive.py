"""Contrastive learning of vectors: what belongs together is near, texts to texts or images to texts."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from experiments.base import Experiment
from transformer.config import Bounded, PositiveFloat
from transformer.data.pairs.embedding_pairs import EmbeddingData, EmbeddingDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.evaluation.likelihood import LikelihoodEvaluator, by_row
from transformer.layers.attention.products import attention_products
from transformer.models.classifier import EmbedderConfig, TextEmbedder, unit
from transformer.training.experiment import Batch, Params, Put
from transformer.training.hooks import Evaluator
from transformer.training.losses.info_nce import info_nce
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig
from transformer.training.step import join_rows, make_eval_step, split_rows

SHARPEST = 100.0
"""The largest scale 1 / temperature of a learnt one, as in CLIP (Radford et al. 2021, section 2.5)."""


@dataclass(frozen=True)
class ContrastiveLossConfig(Bounded):
    """The loss of each pair; see `info_nce`."""

    temperature: PositiveFloat = 0.05  # scores are divided by it; of a learnt one the initial value
    learnt_temperature: bool = False  # the temperature is a parameter
    symmetric: bool = False  # also which query a passage answers, among those of the batch
    # the first so many dimensions are trained as vectors of their own: (32, 64); (): only all of them
    widths: tuple[int, ...] = ()


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
    heads = ("project", "log_scale")
    inputs: tuple[str, ...] = ("queries", "query_lengths", "passages", "passage_lengths")
    """The arrays of a batch of which vectors are computed."""

    def __init__(self, config: ContrastiveConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        self.config = config
        self.data: Any = EmbeddingData(config.data, tokenizer)
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

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per query; of the whole width `accuracy`, the share of queries whose own passage has
        the largest score; with `widths` the loss of each, `loss_of_32`, and with a learnt temperature
        `temperature`."""
        c, weights_b = self.config, batch["weights"]
        queries_bd, passages_bcd = self.vectors(params, batch, rng, train)
        scale: Any = 1 / c.loss.temperature
        if c.loss.learnt_temperature:
            scale = jnp.minimum(jnp.exp(params["log_scale"]), SHARPEST)
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
        """The terms of `loss`, of batches of `evaluate.batch_size`, in random order; and those of
        `evaluate.also`."""
        loader, batches = self.loader(split, shuffle=True), self.config.train.evaluate_batches
        step = jax.jit(by_row(make_eval_step(self), self.weights))
        likelihood = LikelihoodEvaluator(step, loader, put, batches, perplexity=False)
        return {"eval": likelihood, **self.other_evaluators(put, split)}

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

    def data_lines(self) -> list[str]:
        """The number of pairs."""
        rows: Any = self.train_data().rows  # type: ignore[attr-defined]
        negatives = len(self.lengths) - 2
        return [f"{len(rows):,} training pairs" + (f", {negatives} hard negatives each" if negatives else "")]
