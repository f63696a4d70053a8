"""Text to text with an encoder-decoder: translation, summarisation, question answering."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from experiments.pictures import AttentionMaps
from experiments.token_prediction import TokenPrediction
from transformer.data.pair_packing import PackedPairs
from transformer.data.pairs import PairData, PairDataConfig
from transformer.data.tokenizers import Tokenizer
from transformer.decoding.beam import BeamConfig, shorten, translate
from transformer.decoding.stepper import Stepper
from transformer.errors import UserError
from transformer.evaluation.bleu import bleu_scores, bleu_signature
from transformer.evaluation.generation import GenerationEvaluator
from transformer.evaluation.rouge import rouge_scores
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.training.experiment import Evaluator, Params, Put
from transformer.training.flops import matmul_parameters, train_flops_per_token
from transformer.training.hooks import Hook, Samples
from transformer.training.run import RunConfig
from transformer.training.token_losses import LossConfig

SHOWN = 5
"""How many pairs of the validation split the samples show."""

METRICS: dict[str, Callable[[list[str], list[str]], dict[str, float]]] = {
    "bleu": bleu_scores,
    "rouge": rouge_scores,
}
"""What is measured of (written, wanted) texts."""


@dataclass(frozen=True)
class GenerateConfig(BeamConfig):
    """How targets are written, and what is measured of them; `configs/base/` says what each key means."""

    with_scores: bool = False
    metric: Literal["bleu", "rouge", "none"] = "bleu"
    examples: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.examples < 0:
            raise UserError(f"examples: {self.examples}; expected a number of pairs, or 0 for all")


@dataclass(frozen=True)
class SequenceToSequenceConfig(RunConfig):
    """A whole run: one group of keys for each part, listed in `configs/base/`."""

    model: EncoderDecoderConfig
    data: PairDataConfig
    loss: LossConfig
    generate: GenerateConfig

    def __post_init__(self) -> None:
        lengths = {
            "data.source_length": self.data.source_length,
            "data.target_length": self.data.target_length,
            "generate.max_new_tokens": self.generate.max_new_tokens,
        }
        for key, length in lengths.items():
            if length > self.model.max_length:
                raise UserError(f"{key}: {length} is longer than model.max_length {self.model.max_length}")


class SequenceToSequence(TokenPrediction):
    """An encoder-decoder trained on packed pairs; the loss is -log p(token | those before it, source)."""

    Config: type = SequenceToSequenceConfig
    READS: tuple[str, ...] = ("source", "tokens")
    MARKS = TokenPrediction.MARKS | {
        "source_segments_bs": "source_segments",
        "source_positions_bs": "source_positions",
    }

    def __init__(self, config: SequenceToSequenceConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is the run folder's; without one the data's own is made from the training text."""
        self.config = config
        self.data = PairData(config.data, tokenizer, self.packing(config))
        self.model: Any = config.model.build(self.data.tokenizer.vocab_size)

    @staticmethod
    def packing(config: Any) -> Callable[..., PackedPairs]:
        """How pairs are made into rows."""
        return PackedPairs

    @property
    def tokens_per_example(self) -> int:
        """The length of a row of targets."""
        return self.config.data.target_length

    def flops_per_token(self, params: Params) -> float:
        """6 N: attention over pairs that share a row is little beside it (see `training.flops`)."""
        return train_flops_per_token(matmul_parameters(params), 0, 0, 0)

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Of a split the likelihood, and BLEU or ROUGE of what is written for its sources."""
        found = super().evaluators(put, split)
        c = self.config.generate
        if c.metric != "none":
            pairs = itertools.islice(self.data.texts(split), c.examples or None)
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

        c = self.config.train
        return [Samples(c.sample_every, sample, workdir / "samples"), AttentionMaps(c, look, workdir)]

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
        read = shorten(self.data.encode_source(source), self.config.data.source_length)
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
        return lines + ([f"BLEU is {bleu_signature()}"] if "generate/bleu" in scores else [])

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
