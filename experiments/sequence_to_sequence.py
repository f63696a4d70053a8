"""Text to text with an encoder-decoder: translation, summarisation, question answering."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer.data.pairs import PairData, PairDataConfig
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.evaluation.likelihood import LikelihoodEvaluator
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.training.experiment import Batch, Evaluator, Loader, Params, Put
from transformer.training.flops import matmul_parameters, train_flops_per_token
from transformer.training.hooks import Hook
from transformer.training.loop import TrainConfig
from transformer.training.losses import LossConfig, token_losses
from transformer.training.metrics import Sum
from transformer.training.optimizer import OptimizerConfig
from transformer.training.parallel import ParallelConfig
from transformer.training.step import make_eval_step


@dataclass(frozen=True)
class SequenceToSequenceConfig:
    """A whole run: one group of keys for each part, listed in `configs/base.py`."""

    experiment: str
    seed: int
    model: EncoderDecoderConfig
    data: PairDataConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    parallel: ParallelConfig

    def __post_init__(self) -> None:
        for key in ("source_length", "target_length"):
            length, most = getattr(self.data, key), self.model.max_length
            if length > most:
                raise UserError(f"data.{key}: {length} is longer than model.max_length {most}")


class SequenceToSequence:
    """An encoder-decoder trained on packed pairs; the loss is -log p(token | those before it, source)."""

    Config = SequenceToSequenceConfig
    continues = False

    def __init__(self, config: SequenceToSequenceConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is the run folder's; without one the data's own is made from the training text."""
        self.config = config
        self.data = PairData(config.data, tokenizer=tokenizer)
        self.model: Any = config.model.build(self.data.tokenizer.vocab_size)

    def init(self, rng: jax.Array) -> Any:
        """The model's parameters, boxed with their logical axes."""
        return self.model.init(rng, jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32))["params"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per target token (smoothed in training only); `bits_per_byte` of it; `z_loss`."""
        variables = {"params": params}
        x_btd = self.model.apply(
            variables,
            batch["source"],
            batch["tokens"],
            source_segments_bs=batch["source_segments"],
            source_positions_bs=batch["source_positions"],
            segments_bt=batch["segments"],
            positions_bt=batch["positions"],
            train=train,
            rngs={"dropout": rng},
            method="hidden",
        )

        def unembed(x_btd: jax.Array) -> jax.Array:
            return self.model.apply(variables, x_btd, method="unembed")

        return token_losses(unembed, x_btd, batch, self.config.loss, self.model.vocab_size, train)

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of target tokens, for the loss and the optional z-loss alike."""
        weight = jnp.sum(batch["weights"])
        return {"loss": weight} | ({"z_loss": weight} if self.config.loss.z_loss else {})

    @property
    def dtype(self) -> str:
        """The compute type of the model."""
        return self.config.model.dtype

    @property
    def tokens_per_example(self) -> int:
        """The length of a row of targets."""
        return self.config.data.target_length

    def flops_per_token(self, params: Params) -> float:
        """6 N: attention over pairs that share a row is little beside it (see `training.flops`)."""
        return train_flops_per_token(matmul_parameters(params), 0, 0, 0)

    def train_data(self) -> Loader:
        """Shuffled rows of packed training pairs, without end."""
        return self._loader("train", shuffle=True, repeat=True)

    def evaluators(self, put: Put) -> dict[str, Evaluator]:
        """The likelihood of the validation split."""
        step, batches = jax.jit(make_eval_step(self)), self.config.train.evaluate_batches
        return {"eval": LikelihoodEvaluator(step, self._loader("validation"), put, batches)}

    def hooks(self, workdir: Path) -> list[Hook]:
        """Nothing."""
        return []

    def predict(self, params: Params, texts: Iterable[str], seed: int = 0) -> Iterator[list[str]]:
        """For each source its target."""
        raise NotImplementedError

    def opening_lines(self) -> list[str]:
        """How the training pairs fill their rows, and what was done with those that do not fit."""
        rows: Any = self.train_data().rows  # type: ignore[attr-defined]
        c = self.config.data
        lines = [f"{rows.pairs:,} training pairs in {len(rows):,} rows, {rows.padding:.1%} of them padding"]
        if rows.cut:
            most = f"{c.source_length} source or {c.target_length} target tokens"
            lines.append(f"{rows.cut:,} pairs are longer than {most}: their ends are cut off")
        if rows.skipped:
            lines.append(f"{rows.skipped:,} pairs are left out: a side of theirs is empty or too long")
        return lines

    def example_flags(self) -> list[str]:
        """The first source of the validation split."""
        return [f"--prompt={next(self.data.texts('validation'))[0]}"]

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """Nothing."""
        return []

    def _loader(self, split: str, **order: bool) -> Loader:
        return self.data.loader(
            split,
            self.config.train.batch_size,
            seed=self.config.seed,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            **order,
        )
