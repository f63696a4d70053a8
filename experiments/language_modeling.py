"""Causal language modelling: predict each token from those before it."""

import gzip
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer.data.text import TextData, TextDataConfig
from transformer.data.tokenizers import Tokenizer
from transformer.decoding.sampling import SamplingConfig, complete
from transformer.errors import UserError
from transformer.evaluation.likelihood import LikelihoodEvaluator
from transformer.models.decoder import Decoder, DecoderConfig, DecoderStepper
from transformer.training.experiment import Batch, Evaluator, Loader, Params, Put
from transformer.training.flops import matmul_parameters, train_flops_per_token
from transformer.training.hooks import Hook, Samples
from transformer.training.loop import TrainConfig
from transformer.training.losses import LossConfig, token_losses
from transformer.training.metrics import Sum
from transformer.training.optimizer import OptimizerConfig
from transformer.training.parallel import ParallelConfig
from transformer.training.step import make_eval_step


@dataclass(frozen=True)
class LanguageModelingConfig:
    """A whole run: one group of keys for each part, listed in `configs/base.py`."""

    experiment: str
    seed: int
    model: DecoderConfig
    data: TextDataConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    parallel: ParallelConfig
    sample: SamplingConfig

    def __post_init__(self) -> None:
        length, most = self.data.sequence_length, self.model.max_length
        if length > most:
            raise UserError(f"data.sequence_length: {length} is longer than model.max_length {most}")


class LanguageModeling:
    """A decoder trained on packed documents; the loss is -log p(token | those before it), in nats."""

    Config = LanguageModelingConfig
    continues = True

    def __init__(self, config: LanguageModelingConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is the run folder's; without one the data's own is made from the training text."""
        self.config = config
        self.data = TextData(config.data, tokenizer=tokenizer)
        self.model = Decoder(config.model, self.data.tokenizer.vocab_size)

    def init(self, rng: jax.Array) -> Any:
        """The model's parameters, boxed with their logical axes."""
        return self.model.init(rng, jnp.zeros((1, 1), jnp.int32))["params"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per target token (smoothed in training only); `bits_per_byte` of text; `z_loss`."""
        variables = {"params": params}
        x_btd = self.model.apply(
            variables,
            batch["tokens"],
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
        """The length of a row."""
        return self.config.data.sequence_length

    def flops_per_token(self, params: Params) -> float:
        """6 N plus the attention's part (see `transformer.training.flops`)."""
        c = self.config.model
        width, length = c.num_heads * c.key_width, self.config.data.sequence_length
        return train_flops_per_token(matmul_parameters(params), c.num_layers, width, length)

    def train_data(self) -> Loader:
        """Shuffled rows of packed training documents, without end."""
        return self._loader("train", shuffle=True, repeat=True)

    def evaluators(self, put: Put) -> dict[str, Evaluator]:
        """The likelihood of the validation split: loss, perplexity, bits per byte."""
        step, batches = jax.jit(make_eval_step(self)), self.config.train.evaluate_batches
        return {"eval": LikelihoodEvaluator(step, self._loader("validation"), put, batches)}

    def hooks(self, workdir: Path) -> list[Hook]:
        """A completion of the configured prompt, now and then."""

        def sample(params: Params) -> str:
            prompt = self.config.sample.prompt
            return "\n\n".join(prompt + text for text in next(self.predict(params, [prompt])))

        return [Samples(self.config.train.sample_every, sample, workdir / "samples")]

    def stepper(self, params: Params) -> DecoderStepper:
        """The model as decoding sees it."""
        return DecoderStepper.of(self.model, params)

    def predict(self, params: Params, texts: Iterable[str], seed: int = 0) -> Iterator[list[str]]:
        """For each text its continuations, `sample.num_samples` of them, without the text itself."""
        tokenizer = self.data.tokenizer
        completions = complete(
            self.stepper(params),
            (tokenizer.encode(text) for text in texts),
            jax.random.key(seed),
            self.config.sample,
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
            max_length=self.config.model.max_length,
        )
        return ([tokenizer.decode(ids) for ids in group] for group in completions)

    def opening_lines(self) -> list[str]:
        """Nothing: every token of the data is in a row."""
        return []

    def example_flags(self) -> list[str]:
        """Three completions of the configured prompt."""
        return [f"--prompt={self.config.sample.prompt}", "--num_samples=3"]

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """The model's bits per byte beside those of two compressors on the same validation text."""
        text = "".join(self.data.text("validation")).encode()
        bits = {
            "this model": measured["eval/bits_per_byte"],
            "gzip -9": 8 * len(gzip.compress(text, 9)) / len(text),
            "xz -9e": 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text),
        }
        listed = ", ".join(f"{name} {value:.3f}" for name, value in bits.items())
        return [f"bits per byte of {len(text):,} bytes of validation text: {listed}"]

    def _loader(self, split: str, **order: bool) -> Loader:
        return self.data.loader(
            split,
            self.config.train.batch_size,
            seed=self.config.seed,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            **order,
        )
