"""Text to text with an encoder-decoder: translation, summarisation, question answering."""

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.base import TextObjective
from transformer.data.pairs.pair_packing import PackedPairs
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding.beam import shorten, translate
from transformer.decoding.completion import ContextWindow, TextGenerator, cut
from transformer.decoding.stepper import Stepper
from transformer.decoding.suppressed import suppressed, with_first_token
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.evaluation.attention_weights import AttentionMap
from transformer.evaluation.scoring import Row
from transformer.evaluation.text import make_metrics, metric_names
from transformer.evaluation.text.text_metric import MetricOptions, TextMetric
from transformer.evaluation.text.written_text import GenerateConfig, GenerationEvaluator
from transformer.layers.attention.products import attention_products
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.recurrent import RecurrentConfig
from transformer.models.transforms.reduced import check_cache
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Params, Put
from transformer.training.hooks import Evaluator, Hook
from transformer.training.logging.throughput import pair_flops_per_token
from transformer.training.losses.token_losses import LossConfig
from transformer.training.run_config import RunConfig

SAMPLE_PAIRS = 5
"""The number of validation pairs in the samples."""


@dataclass(frozen=True)
class SequenceToSequenceConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: EncoderDecoderConfig
    data: PairDataConfig
    loss: LossConfig
    generate: GenerateConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = {
            "data.source_length": self.data.source_length,
            "data.target_length": self.data.target_length,
            "generate.max_new_tokens": self.generate.max_new_tokens,
        }
        for key, length in lengths.items():
            if length > self.model.max_length:
                raise UserError(f"{key}: {length} is longer than model.max_length {self.model.max_length}")


class SequenceToSequence(TextObjective):
    """An encoder-decoder trained on packed pairs; the loss is -log p(token | those before it, source)."""

    Config: type = SequenceToSequenceConfig
    decoding = "generate"

    def __init__(self, config: SequenceToSequenceConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default one is trained on the training text."""
        self.config = config
        self.data = PairData(config.data, tokenizer, self.packing(config))
        self.model: Any = config.model.build(self.data.tokenizer.vocab_size)

    @staticmethod
    def packing(config: Any) -> Callable[..., PackedPairs]:
        """The class that packs pairs into rows."""
        return PackedPairs

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        tokens_bt = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(rng, tokens_bt, tokens_bt)["params"]

    def hidden(self, params: Params, batch: Batch, **options: Any) -> Any:
        """The decoder's last states (b, t, d); `unembed` maps them to logits of the batch's `targets`."""
        return self.model.apply(
            {"params": params},
            batch["source"],
            batch["tokens"],
            segments_bt=batch["segments"],
            positions_bt=batch["positions"],
            source_segments_bs=batch["source_segments"],
            source_positions_bs=batch["source_positions"],
            method="hidden",
            **options,
        )

    @property
    def tokens_per_example(self) -> int:
        """The length of a target row."""
        return self.config.data.target_length

    def flops_per_token(self, params: Params) -> float:
        """FLOPs of encoder and decoder per target token (see `training.throughput`)."""
        c, s, t = self.config.model, self.config.data.source_length, self.config.data.target_length
        products = attention_products(c.encoder_stack, s) * s / t
        products += attention_products(c.decoder_stack, t, causal=True, memory=s)
        return pair_flops_per_token(params, products, s, t, self.config.model.expert_share)

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """The likelihood of a split, and the metrics of generated targets."""
        evaluators = super().evaluators(put, split)
        if metrics := self._metrics():
            sources, references = self._examples(split)
            measured = functools.partial(self.data.counted, split, sources)
            evaluators["generate"] = GenerationEvaluator(self._write, sources, references, metrics, measured)
        return evaluators

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Sources, references and generated targets of some validation pairs, and the attention maps of the
        first one's translation."""
        suppressed(None, self.config.generate.suppress, self.data.tokenizer.targets)  # or refused
        with_first_token(None, self.config.generate.first, self.data.tokenizer.targets)
        self._pairs = list(itertools.islice(self.data.texts("validation"), SAMPLE_PAIRS))
        return super().hooks(folder)

    def sample(self, params: Params) -> str:
        """See `TextObjective`."""
        written = self._write(params, [source for source, _ in self._pairs])
        shown = zip(*zip(*self._pairs, strict=True), written, strict=True)
        return "\n\n".join("source: {}\nwanted: {}\nwritten: {}".format(*texts) for texts in shown)

    def attended(self, params: Params) -> AttentionMap | None:
        """See `TextObjective`."""
        return self.attention(params, self._pairs[0][0])

    def prompt(self, source: str) -> list[int]:
        """The tokens of a source."""
        return self.data.encode_source(source)

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a source that are read."""
        return self.config.data.source_length

    def row(self, text: str, continuation: str) -> Row:
        """The source, and the target with start and end-of-sequence tokens."""
        prompt, target = self.prompt(text), self.target(continuation, self.longest)
        read = shorten(prompt, self.longest_prompt)
        return Row([self.data.tokenizer.bos_id, *target], 1, read, len(prompt) - len(read))

    def target(self, text: str, most: int) -> list[int]:
        """The tokens of a target and the end-of-sequence token.

        Raises:
          UserError: the target is empty, or longer than `most` tokens.
        """
        tokens = self.data.tokenizer.targets.encode(text)
        ids = [*self.data.first_tokens, *tokens, self.data.tokenizer.eos_id]
        if not tokens:
            raise UserError(f"the continuation {text!r} has no token")
        if len(ids) > most:
            raise UserError(f"a continuation of {len(ids)} tokens with its end; the model writes {most}")
        return ids

    def stepper(self, params: Params) -> Stepper:
        """The model behind the `Stepper` protocol of decoding."""
        bos_id, cache = self.data.tokenizer.bos_id, self.config.generate.cache
        stepper = self.model.stepper(self.reduced(params), bos_id, cache)
        c, tokenizer = self.config.generate, self.data.tokenizer.targets
        return with_first_token(suppressed(stepper, c.suppress, tokenizer), c.first, tokenizer)

    def problem(self, text: str) -> str:
        """Why a source cannot be answered: it is too long, with `data.too_long` "refuse"."""
        c = self.config.data
        if c.too_long != "refuse" or (length := len(self.data.encode_source(text))) <= c.source_length:
            return ""
        most = f"data.source_length is {c.source_length}, and data.too_long refuses"
        return f"has {length} tokens, its end among them; {most}"

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each source the `generate.n_best` best targets by beam search, best first; with
        `generate.with_scores` each after its score and a tab. With `generate.temperature` above 0,
        `generate.num_samples` sampled targets."""
        scored = self.config.generate.with_scores
        for targets in self._written(params, self._noting(texts, first), seed, first):
            yield [f"{score:.4f}\t{text}" if scored else text for score, text in targets]

    def stream(self, params: Params, text: str, seed: int = 0) -> Iterator[str] | None:
        """The only sampled target, in pieces; None with several samples or with beam search."""
        if not self.config.generate.temperature or self.config.generate.num_samples > 1:
            return None
        (prompt,) = self._shortened(self._noting([text]))
        return self._generator(params).stream(prompt, jax.random.key(seed))

    def attention(self, params: Params, source: str) -> AttentionMap | None:
        """The cross-attention weights (h, t, s) of the last layer for the best target, and the names of
        target and source tokens; None for a model without attention."""
        tokenizer = self.data.tokenizer
        read = shorten(self.data.encode_source(source), self.config.data.source_length)
        ids, _ = next(iter(self._translate(params, [source])))[0]
        written = [*ids, tokenizer.eos_id]
        source_bs, tokens_bt = np.array([read]), np.array([[tokenizer.bos_id, *ids]])
        weights_hts = jax.jit(self.model.attention_map)(params, source_bs, tokens_bt)
        if weights_hts is None:
            return None
        sides = (tokenizer.targets, written), (tokenizer, read)
        wrote, saw = ([side.decode([i]) or "end" for i in tokens] for side, tokens in sides)
        return on_host(weights_hts), wrote, saw

    def data_lines(self) -> list[str]:
        """The number of pairs, the share of padding, and how many pairs were truncated or left out."""
        return self.data.described(self.train_data().rows)  # type: ignore[attr-defined]

    def example_flags(self) -> list[str]:
        """The first source of the validation split."""
        return [f"--prompt={next(self.data.texts('validation'))[0]}"]

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The metrics of generated targets, and their signatures."""
        scores = {name: value for name, value in measured.items() if name.startswith("generate/")}
        if not scores:
            return []
        sources, references = self._examples("validation")
        listed = ", ".join(f"{name.removeprefix('generate/')} {value:.2f}" for name, value in scores.items())
        signatures = zip(metric_names(self.config.generate.metric), self._metrics(), strict=True)
        some, *_ = self.data.counted("validation", sources).split(";")
        return [f"on {some} of the validation split: {listed}"] + [
            f"{name} is {metric.signature(references)}" for name, metric in signatures
        ]

    def _translate(self, params: Params, texts: Iterable[str]) -> Iterator[list[tuple[list[int], float]]]:
        return translate(
            self.stepper(params),
            map(self.prompt, texts),
            self.config.generate,
            eos_id=self.data.tokenizer.eos_id,
            max_source_length=self.longest_prompt,
            batch_size=self.config.generate.batch_size,
        )

    def _generator(self, params: Params) -> TextGenerator:
        tokenizer, c = self.data.tokenizer.targets, self.config.generate
        window = ContextWindow(tokenizer.eos_id, self.longest_prompt)
        return TextGenerator(self.stepper(params), tokenizer, c, window, False, c.extra_tokens, c.batch_size)

    def _shortened(self, texts: Iterable[str]) -> Iterator[list[int]]:
        return (shorten(self.prompt(text), self.longest_prompt) for text in texts)

    def _noting(self, texts: Iterable[str], before: int = 0) -> Iterator[str]:
        """The texts unchanged. Raises on a text that is too long, or counts such texts and prints a note at
        the end, by `data.too_long`."""
        c, long, first = self.config.data, 0, 0
        for number, text in enumerate(self.checked(texts, before), before + 1):
            if len(self.data.encode_source(text)) > c.source_length:
                long, first = long + 1, first or number
            yield text
        if long and jax.process_index() == 0:
            subject = f"{long:,} texts, number {first} the first," if long > 1 else f"text {first}"
            problem = f"longer than data.source_length, {c.source_length} tokens: the rest is not read"
            print(f"{subject} {'are' if long > 1 else 'is'} {problem}", file=sys.stderr, flush=True)

    def _metrics(self) -> list[TextMetric]:
        c = self.config.generate
        return make_metrics(c.metric, MetricOptions(c.bleu_tokenizer))

    def _examples(self, split: str) -> tuple[list[str], list[list[str]]]:
        """The sources of a split that are evaluated, and the references of each."""
        examples = list(itertools.islice(self.data.examples(split), self.config.generate.examples or None))
        return [source for source, _ in examples], [references for _, references in examples]

    def _written(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[tuple[float, str]]]:
        """(score, target) pairs of each source; the score of sampled targets is NaN."""
        c = self.config.generate
        if c.temperature:
            drawn = self._generator(params).generate(self._shortened(texts), jax.random.key(seed), first)
            yield from ([(math.nan, text) for text in targets] for targets in drawn)
        else:
            for beam in self._translate(params, texts):
                yield [(score, cut(self.data.tokenizer.targets.decode(ids), c.stop)) for ids, score in beam]

    def _write(self, params: Params, sources: Iterable[str]) -> list[str]:
        return [targets[0][1] for targets in self._written(params, sources)]


@dataclass(frozen=True)
class RecurrentSequenceToSequenceConfig(SequenceToSequenceConfig):
    """The config of a run: one group of keys for each part."""

    model: RecurrentConfig  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Skips the checks of lengths: a model without positions reads any length."""
        RunConfig.__post_init__(self)
        check_cache("generate.cache", self.generate.cache, False)


class RecurrentPairs(SequenceToSequence):
    """`SequenceToSequence` with a recurrent model; data, loss and decoding are the same."""

    Config = RecurrentSequenceToSequenceConfig

    @property
    def longest(self) -> int:
        """Recurrent layers read any number of tokens."""
        return sys.maxsize

    def flops_per_token(self, params: Params) -> float:
        """FLOPs of encoder and decoder per target token; only the decoder's alignment is attention."""
        c, data = self.config.model, self.config.data
        products = 0 if c.attention == "none" else 2 * c.d_model * data.source_length
        return pair_flops_per_token(params, products, data.source_length, data.target_length)
