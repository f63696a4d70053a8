"""Masked language modelling with next-sentence prediction (BERT)."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.base import TextObjective
from transformer.data.encoders.masked_text import MaskedData, MaskedDataConfig
from transformer.data.tokenization.special_tokens import MARK, encode_masked, mask_problem
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.evaluation.attention_weights import AttentionMap, encoder_attention, first_tokens
from transformer.evaluation.embeddings import states_of
from transformer.layers.attention.products import attention_products
from transformer.models.encoder import HeadConfig
from transformer.models.masked_lm import MaskedLanguageModel
from transformer.training.experiment import Batch, Params
from transformer.training.logging.throughput import matmul_parameters, train_flops_per_token
from transformer.training.losses.token_losses import LossConfig, token_losses, token_weights
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig, check_row_length

MASK = "[MASK]"
LIKELIEST = 5
"""The number of predictions that are shown for each mask."""


@dataclass(frozen=True)
class MaskedConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: HeadConfig
    data: MaskedDataConfig
    loss: LossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)
        if self.data.next_sentence and self.model.num_token_types < 2:
            raise UserError("model.num_token_types: 1, but data.next_sentence has two texts to tell apart")


class MaskedLanguageModeling(TextObjective):
    """An encoder with BERT's two losses, means over masked tokens and over pairs of texts."""

    Config: type = MaskedConfig
    weights = ("weights", "guessed")
    heads: tuple[str, ...] = ("transform", "transform_norm", "output_bias", "pooler", "next")

    def __init__(self, config: MaskedConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default one is trained on the training text."""
        self.config = config
        self.data = MaskedData.of(config.data, tokenizer)
        vocab_size = config.model.entries(self.data.special_tokens.vocab_size)
        self.model = MaskedLanguageModel(config.model, vocab_size, config.data.next_sentence)

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        tokens_bt = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(rng, tokens_bt, tokens_bt)["params"]

    def hidden(self, params: Params, batch: Batch, **options: Any) -> Any:
        """The last layer's states (b, t, d)."""
        return self.model.apply(
            {"params": params},
            batch["tokens"],
            segments_bt=batch["segments"],
            positions_bt=batch["positions"],
            types_bt=batch["types"],
            method="encode",
            **options,
        )

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per masked token; `next_loss`, nats per pair of texts, `next_accuracy`; `z_loss`."""
        variables = {"params": params}
        x_btd, sown = self.hidden(params, batch, train=train, rngs={"dropout": rng}, mutable="terms")
        x_bmd = self.model.apply(variables, x_btd, batch["places"], method="masked_logits")

        unembed = functools.partial(self.model.apply, variables, method="unembed")
        masked = {"targets": batch["targets"], "weights": batch["guessed"]}
        terms = token_losses(unembed, x_bmd, masked, self.config.loss, self.model.vocab_size, train, sown)
        if self.config.data.next_sentence:
            k = batch["labels"].shape[1]
            logits = self.model.apply(variables, x_btd, batch["segments"], k, method="next_sentence_logits")
            log_p = jax.nn.log_softmax(logits)
            nll = -jnp.take_along_axis(log_p, batch["labels"][..., None], axis=-1)[..., 0]
            right = jnp.argmax(logits, axis=-1) == batch["labels"]
            terms["next_loss"] = Sum.of(nll, batch["weights"])
            terms["next_accuracy"] = Sum.of(right, batch["weights"])
        return terms

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of masked tokens, and the number of pairs of texts."""
        weights = token_weights(batch["guessed"], self.config.loss)
        if self.config.data.next_sentence:
            weights["next_loss"] = jnp.sum(batch["weights"])
        return weights

    def evaluation_loader(self, split: str) -> Any:
        """The loader of one pass over a split, in random order if `train.evaluate_batches` limits it, because
        rows are sorted by length."""
        return self.loader(split, shuffle=self.config.train.evaluate_batches > 0)

    def flops_per_token(self, params: Params) -> float:
        """6 N plus attention's part, where only masked tokens are multiplied with the output embedding."""
        c = self.config.model
        vocabulary = params["encoder"]["embedding"]["table"].size * (1 - self.config.data.masked_share)
        matrices = matmul_parameters(params, self.config.model.expert_share) - int(vocabulary)
        products = attention_products(c.stack(), self.config.data.sequence_length)
        return train_flops_per_token(matrices, products)

    def sample(self, params: Params) -> str:
        """A validation line with a masked word, and the predictions for it."""
        return "\n".join([self._masked_line, *next(self.predict(params, [self._masked_line]))])

    def attended(self, params: Params) -> AttentionMap | None:
        """The attention map of that line."""
        if not self.config.model.has_attention:
            return None
        return first_tokens(self.attention(params, self._masked_line))

    def problem(self, text: str) -> str:
        """Why a text cannot be answered: it has no mask, one with a wrong number, or is too long."""
        if problem := mask_problem(text):
            return problem
        if not MARK.search(text) and self.mask not in text:
            return f"has no {self.mask}: which word is to be guessed?"
        count, room = len(self.masked_tokens(text)), self.config.data.sequence_length
        return f"has {count} tokens; the model reads {room}" if count > room else ""

    @property
    def mask(self) -> str:
        """The tokenizer's name of `[MASK]`, which stands for it in texts too; of RoBERTa `<mask>`."""
        return self.data.tokenizer.name(self.data.special_tokens.mask) or MASK

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each mask of a text, `[MASK]` or one of `[MASK*3]`, one line: the likeliest tokens with their
        probabilities given the text without any of its masks, tab-separated.

        Raises:
          UserError: a text without a mask, or one that is too long.
        """

        @jax.jit
        def guess(params: Params, tokens_bt: Any, length: Any, places_bm: Any) -> tuple[jax.Array, jax.Array]:
            segments_bt = (jnp.arange(tokens_bt.shape[1]) < length)[None].astype(jnp.int32)
            logits_bmv, _ = self.model.apply(
                {"params": params}, tokens_bt, places_bm, segments_bt=segments_bt
            )
            ordinary_v = jnp.zeros(logits_bmv.shape[-1], bool).at[self.data.words.ordinary].set(True)
            p_mv = jax.nn.softmax(jnp.where(ordinary_v, logits_bmv[0], -jnp.inf))
            return jax.lax.top_k(p_mv, LIKELIEST)

        room = self.config.data.sequence_length
        for text in self.checked(texts, first):
            tokens = self.masked_tokens(text)
            places = np.flatnonzero(tokens == self.data.special_tokens.mask)
            tokens_bt = np.pad(tokens, (0, room - len(tokens)))[None]
            filled = np.pad(places, (0, room - len(places)))[None]
            p_mk, ids_mk = map(on_host, guess(params, tokens_bt, len(tokens), filled))
            yield [
                "\t".join(f"{self._shown(int(i))} {p:.4f}" for i, p in zip(ids, ps, strict=True))
                for ids, ps in zip(ids_mk[: len(places)], p_mk[: len(places)], strict=True)
            ]

    def attention(self, params: Params, text: str, layer: int = -1) -> AttentionMap:
        """The attention weights (h, t, t) of a layer (-1: the last) over `[CLS] text [SEP]`, truncated to a
        row, and the names of its query and key tokens."""
        tokens = self.masked_tokens(text)[: self.config.data.sequence_length]
        return encoder_attention(self.model, params, (tokens, np.zeros_like(tokens)), self.data, layer)

    def states(self, params: Params, text: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """The span (start, end) of each token of a text, truncated to a row, and the last layer's states
        (t, d)."""
        special_tokens, most = self.data.special_tokens, self.config.data.sequence_length
        hidden = functools.partial(self._hidden, params)
        tokenizer = self.data.tokenizer
        return states_of(
            hidden, tokenizer, text, before=[special_tokens.cls], after=[special_tokens.sep], most=most
        )

    @functools.cached_property
    def _hidden(self) -> Callable[..., jax.Array]:
        def hidden(params: Params, tokens_bt: jax.Array, segments_bt: jax.Array) -> jax.Array:
            return self.model.apply({"params": params}, tokens_bt, segments_bt=segments_bt, method="encode")

        return jax.jit(hidden)

    def _shown(self, token: int) -> str:
        """The text of a token, or its name in the tokenizer if it is white space or part of a character."""
        text = self.data.tokenizer.decode([token]).strip()
        readable = text and text.isprintable() and "\ufffd" not in text
        return text if readable else self.data.tokenizer.name(token)

    def masked_tokens(self, text: str) -> np.ndarray:
        """`[CLS] text [SEP]` as tokens, each `[MASK]` in the text one token."""
        special_tokens = self.data.special_tokens
        text = text.replace(self.mask, MASK)
        ids = encode_masked(self.data.tokenizer, text, special_tokens.mask)
        return np.array([special_tokens.cls, *ids, special_tokens.sep], np.int32)

    @property
    def _masked_line(self) -> str:
        """A line of the validation text with at least five words, the middle one masked."""
        for text in self.data.text("validation"):
            for line in text.splitlines():
                words = line.split()
                if len(words) >= 5 and len(self.masked_tokens(line)) < self.config.data.sequence_length - 8:
                    words[len(words) // 2] = MASK
                    return " ".join(words)
        return MASK

    def data_lines(self) -> list[str]:
        """The number of texts and rows, and the share of padding, for each source of a mixture."""
        loader: Any = self.train_data()
        unit = "pairs of texts" if self.config.data.next_sentence else "texts"
        lines = []
        for name, part in (loader.parts or {"": loader}).items():
            texts, rows = f"{len(part.rows.packed):,} {unit}", part.rows
            of = f"{name}: " if name else ""
            lines.append(f"{of}{texts} in {len(rows):,} rows, {rows.padding:.1%} of them padding")
        return lines

    def example_flags(self) -> list[str]:
        """A validation line with a masked word."""
        return [f"--prompt={self._masked_line}"]

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The results on the validation text."""
        lines = [f"perplexity of masked tokens {measured['eval/perplexity']:.2f}"]
        if "eval/next_accuracy" in measured:
            lines.append(f"next-sentence accuracy {measured['eval/next_accuracy']:.1%}")
        return lines
