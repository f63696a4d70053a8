"""Text to text with an encoder-decoder: translation, summarisation, question answering."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.pictures import AttentionMaps
from transformer.data.pair_packing import PackedPairs
from transformer.data.pairs import PairData, PairDataConfig
from transformer.data.tokenizers import Tokenizer
from transformer.decoding.beam import BeamConfig, translate
from transformer.decoding.stepper import Stepper
from transformer.errors import UserError
from transformer.evaluation.bleu import bleu, bleu_scores
from transformer.evaluation.generation import GenerationEvaluator
from transformer.evaluation.likelihood import LikelihoodEvaluator
from transformer.evaluation.rouge import rouge_scores
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.training.experiment import Batch, Evaluator, Loader, Params, Put
from transformer.training.flops import matmul_parameters, train_flops_per_token
from transformer.training.hooks import Hook, Samples
from transformer.training.loop import TrainConfig
from transformer.training.losses import LossConfig, token_losses
from transformer.training.metrics import Sum
from transformer.training.optimizer import OptimizerConfig
from transformer.training.parallel import ParallelConfig
from transformer.training.step import make_eval_step

SHOWN = 5
"""How many pairs of the validation split the samples show."""

METRICS: dict[str, Callable[[list[str], list[str]], dict[str, float]]] = {
    "bleu": bleu_scores,
    "rouge": rouge_scores,
}
"""What is measured of (written, wanted) texts."""


@dataclass(frozen=True)
class GenerateConfig(BeamConfig):
    """How targets are written, and what is measured of them; `configs/base.py` says what each key means."""

    with_scores: bool = False
    metric: Literal["bleu", "rouge", "none"] = "bleu"
    examples: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.examples < 0:
            raise UserError(f"examples: {self.examples}; expected a number of pairs, or 0 for all")


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
    generate: GenerateConfig

    def __post_init__(self) -> None:
        for key in ("source_length", "target_length"):
            length, most = getattr(self.data, key), self.model.max_length
            if length > most:
                raise UserError(f"data.{key}: {length} is longer than model.max_length {most}")


class SequenceToSequence:
    """An encoder-decoder trained on packed pairs; the loss is -log p(token | those before it, source)."""

    Config: type = SequenceToSequenceConfig
    continues = False

    def __init__(self, config: SequenceToSequenceConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is the run folder's; without one the data's own is made from the training text."""
        self.config = config
        self.data = PairData(config.data, tokenizer, self.packing(config))
        self.model: Any = config.model.build(self.data.tokenizer.vocab_size)

    @staticmethod
    def packing(config: Any) -> Callable[..., PackedPairs]:
        """How pairs are made into rows."""
        return PackedPairs

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
        """Of the validation split the likelihood, and BLEU or ROUGE of what is written for its sources."""
        step, batches = jax.jit(make_eval_step(self)), self.config.train.evaluate_batches
        found: dict[str, Evaluator] = {
            "eval": LikelihoodEvaluator(step, self._loader("validation"), put, batches)
        }
        c = self.config.generate
        if c.metric != "none":
            pairs = itertools.islice(self.data.texts("validation"), c.examples or None)
            sources, references = map(list, zip(*pairs, strict=True))
            found["generate"] = GenerationEvaluator(self._write, sources, references, METRICS[c.metric])
        return found

    def hooks(self, workdir: Path) -> list[Hook]:
        """Now and then some sources of the validation split with what is wanted and what is written, and a
        picture of where the first one's translation looks."""
        pairs = list(itertools.islice(self.data.texts("validation"), SHOWN))
        sources = [source for source, _ in pairs]

        def sample(params: Params) -> str:
            written = self._write(params, sources)
            shown = zip(*zip(*pairs, strict=True), written, strict=True)
            return "\n\n".join("source: {}\nwanted: {}\nwritten: {}".format(*texts) for texts in shown)

        def look(params: Params) -> tuple[np.ndarray, list[str], list[str]] | None:
            return self.attention(params, sources[0])

        every = self.config.train.sample_every
        return [Samples(every, sample, workdir / "samples"), AttentionMaps(every, look, workdir)]

    def prompt(self, source: str) -> list[int]:
        """The tokens from which the model writes."""
        return self.data.encode_source(source)

    @property
    def longest_prompt(self) -> int:
        """Its greatest length."""
        return self.config.data.source_length

    def stepper(self, params: Params) -> Stepper:
        """The model as decoding sees it."""
        return self.model.stepper(params, self.data.tokenizer.bos_id)

    def predict(self, params: Params, texts: Iterable[str], seed: int = 0) -> Iterator[list[str]]:
        """For each source its `generate.n_best` best targets, the best first; with `generate.with_scores`
        each after its score and a tab. Nothing is random in it: `seed` changes nothing."""
        decode, c = self.data.tokenizer.decode, self.config.generate
        for found in self._translate(params, texts):
            yield [f"{score:.4f}\t{decode(ids)}" if c.with_scores else decode(ids) for ids, score in found]

    def attention(self, params: Params, source: str) -> tuple[np.ndarray, list[str], list[str]] | None:
        """Where the best target looks while it is written: weights (h, t, s) of the last layer, the tokens
        written and the tokens read; None for a model without attention."""
        tokenizer = self.data.tokenizer
        read = self.data.encode_source(source)[-self.config.data.source_length :]
        ids, _ = next(iter(self._translate(params, [source])))[0]
        written = [*ids, tokenizer.eos_id]
        source_bs, tokens_bt = np.array([read]), np.array([[tokenizer.bos_id, *ids]])
        weights_hts = jax.jit(self.model.attention_map)(params, source_bs, tokens_bt)
        if weights_hts is None:
            return None
        wrote, saw = ([tokenizer.decode([i]) or "end" for i in tokens] for tokens in (written, read))
        return np.asarray(weights_hts), wrote, saw

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
        """The measured quality of what the model writes."""
        scores = {name: value for name, value in measured.items() if name.startswith("generate/")}
        count = self.config.generate.examples or "all"
        listed = ", ".join(f"{name.removeprefix('generate/')} {value:.2f}" for name, value in scores.items())
        lines = [f"on {count} pairs of the validation split: {listed}"] if scores else []
        return lines + ([f"BLEU is {bleu(['a'], ['a'])[1]}"] if "generate/bleu" in scores else [])

    def _translate(self, params: Params, texts: Iterable[str]) -> Iterator[list[tuple[list[int], float]]]:
        return translate(
            self.stepper(params),
            map(self.prompt, texts),
            self.config.generate,
            eos_id=self.data.tokenizer.eos_id,
            max_source_length=self.longest_prompt,
        )

    def _write(self, params: Params, sources: Iterable[str]) -> list[str]:
        return [self.data.tokenizer.decode(found[0][0]) for found in self._translate(params, sources)]

    def _loader(self, split: str, **order: bool) -> Loader:
        return self.data.loader(
            split,
            self.config.train.batch_size,
            seed=self.config.seed,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            **order,
        )
