"""Replaced-token detection (ELECTRA): an encoder tells which tokens of a text a generator has replaced."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.masked_lm import MaskedLanguageModeling
from transformer.config import Bounded, NonnegativeFloat, PositiveFraction
from transformer.data.encoders.replaced_text import ReplacedData, ReplacedDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.layers.attention.products import attention_products
from transformer.models.encoder import HeadConfig
from transformer.models.masked_lm import ReplacedTokenModel, generator_config
from transformer.training.experiment import Batch, Params
from transformer.training.logging.throughput import train_flops_per_token
from transformer.training.losses.token_losses import LossConfig, token_losses, token_weights
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig, check_row_length


@dataclass(frozen=True)
class GeneratorConfig(Bounded):
    """The encoder that replaces tokens, which is left out of what is fine-tuned."""

    share: PositiveFraction = 0.25  # its width, heads and hidden width of the feed-forward, of those of model


@dataclass(frozen=True)
class DetectionLossConfig(LossConfig):
    """The loss of the generator, as of any masked language model, and the coefficient of the other one."""

    detection: NonnegativeFloat = 50.0  # coefficient of the discriminator's loss


@dataclass(frozen=True)
class ElectraConfig(RunConfig):
    """The config of a run: one group of keys for each part; `model` is the discriminator."""

    model: HeadConfig
    generator: GeneratorConfig
    data: ReplacedDataConfig
    loss: DetectionLossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)
        if self.data.next_sentence:
            raise UserError("data.next_sentence: True; expected False: electra reads one text at a time")


class ReplacedTokenDetection(MaskedLanguageModeling):
    """E[mean over masked t of -log p_G(x_t | x^masked)] + c E[mean over all t of BCE(D_t(y), y_t != x_t)].

    y is x with each masked token drawn from p_G. No gradient passes through the draw, so the generator
    is trained by its own loss alone, and the embeddings, which both share, by both. A token that is drawn as
    it was counts as not replaced. c is `loss.detection`. Source: Clark et al. 2020 (ELECTRA), section 2, with
    weight sharing of section 3.2; c = 50 is theirs.
    """

    Config: type = ElectraConfig
    weights = ("guessed", "real")
    heads = (
        *("project", "generator", "transform", "transform_norm", "output_bias", "detect_hidden", "detect"),
        *("pooler", "next"),
    )

    def __init__(self, config: ElectraConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default one is trained on the training text."""
        self.config: Any = config
        self.data = ReplacedData.of(config.data, tokenizer)
        vocab_size = config.model.entries(self.data.special_tokens.vocab_size)
        self.model: Any = ReplacedTokenModel(config.model, vocab_size, config.generator.share)

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per masked token of the generator; `detection`, c times `detection_loss`, the nats per
        token of the discriminator; `detection_accuracy`, and `detection_recall` of replaced tokens."""

        def apply(*inputs: Any, **options: Any) -> Any:
            return self.model.apply({"params": params}, *inputs, **options)

        tokens_bt, places_bm = jnp.asarray(batch["tokens"]), batch["places"]
        here = {
            "segments_bt": batch["segments"],
            "positions_bt": batch["positions"],
            "types_bt": batch["types"],
        }
        here |= {"train": train, "rngs": {"dropout": rng}}
        x_bmd = apply(apply(tokens_bt, method="generate", **here), places_bm, method="masked_logits")

        def unembed(x_bmd: jax.Array, *part: Any) -> jax.Array:
            return apply(x_bmd, *part, method="unembed")

        shape = places_bm.shape[1], self.model.vocab_size
        noise_bmv = jax.vmap(lambda draw: jax.random.gumbel(jax.random.key(draw), shape))(batch["draws"])
        logits_bmv = jax.lax.stop_gradient(unembed(x_bmd))[..., : self.model.vocab_size]
        drawn_bm = jnp.argmax(logits_bmv + noise_bmv, axis=-1).astype(tokens_bt.dtype)
        before_bm = jnp.take_along_axis(tokens_bt, places_bm, axis=1)
        # Places that pad a row are those of its first token, which is never masked.
        drawn_bm = jnp.where(before_bm == self.data.special_tokens.mask, drawn_bm, before_bm)
        corrupted_bt = tokens_bt.at[jnp.arange(len(tokens_bt))[:, None], places_bm].set(drawn_bm)
        replaced_bt = corrupted_bt != batch["original"]

        x_btd, sown = apply(corrupted_bt, method="encode", mutable="terms", **here)
        logits_bt = apply(x_btd, method="replaced_logits")
        bce_bt = jax.nn.softplus(logits_bt) - jnp.where(replaced_bt, logits_bt, 0.0)
        right_bt, real_bt = (logits_bt > 0) == replaced_bt, batch["real"]
        masked = {"targets": batch["targets"], "weights": batch["guessed"]}
        terms = token_losses(unembed, x_bmd, masked, self.config.loss, self.model.vocab_size, train, sown)
        return terms | {
            "detection": Sum.of(self.config.loss.detection * bce_bt, real_bt),
            "detection_loss": Sum.of(jax.lax.stop_gradient(bce_bt), real_bt),
            "detection_accuracy": Sum.of(right_bt, real_bt),
            "detection_recall": Sum.of(right_bt, real_bt * replaced_bt),
        }

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of masked tokens, and the number of all."""
        return token_weights(batch["guessed"], self.config.loss) | {"detection": jnp.sum(batch["real"])}

    def flops_per_token(self, params: Params) -> float:
        """That of masked language modelling, and the generator's attention."""
        small = generator_config(self.config.model, self.config.generator.share)
        products = attention_products(small.stack(), self.config.data.sequence_length)
        return super().flops_per_token(params) + train_flops_per_token(0, products)

    def problem(self, text: str) -> str:
        """Why a text cannot be answered: it is too long."""
        count, room = len(self.masked_tokens(text)), self.config.data.sequence_length
        return f"has {count} tokens; the model reads {room}" if count > room else ""

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each text one line: its tokens, each with the probability that it is not of the text.

        Raises:
          UserError: a text is too long.
        """

        @jax.jit
        def detect(params: Params, tokens_bt: jax.Array, length: jax.Array) -> jax.Array:
            segments_bt = (jnp.arange(tokens_bt.shape[1]) < length)[None].astype(jnp.int32)
            x_btd = self.model.apply({"params": params}, tokens_bt, segments_bt=segments_bt, method="encode")
            return jax.nn.sigmoid(self.model.apply({"params": params}, x_btd, method="replaced_logits")[0])

        room = self.config.data.sequence_length
        for text in self.checked(texts, first):
            tokens = self.masked_tokens(text)
            p_t = on_host(detect(params, np.pad(tokens, (0, room - len(tokens)))[None], len(tokens)))
            within = zip(tokens[1:-1].tolist(), p_t[1:-1], strict=False)
            yield ["\t".join(f"{self._shown(token)} {p:.4f}" for token, p in within)]

    def sample(self, params: Params) -> str:
        """A validation line whose middle word is its first, and what the discriminator says of its tokens."""
        return "\n".join([self._masked_line, *next(self.predict(params, [self._masked_line]))])

    @property
    def _masked_line(self) -> str:
        words = super()._masked_line.split()
        words[len(words) // 2] = words[0]
        return " ".join(words)

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The results on the validation text."""
        accuracy, recall = measured["eval/detection_accuracy"], measured["eval/detection_recall"]
        perplexity = f"perplexity of masked tokens {measured['eval/perplexity']:.2f} (generator)"
        return [perplexity, f"{accuracy:.1%} of tokens told apart, {recall:.1%} of those that are replaced"]
