"""Masked diffusion language modelling: an encoder restores rows of which a random share is masked."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.base import TextObjective
from experiments.language_modeling import LanguageModeling
from transformer.config import Bounded, NonnegativeFloat, OneOf, Positive
from transformer.data.encoders.noised_text import NoisedData
from transformer.data.text.packed_text import TextDataConfig
from transformer.data.tokenization.special_tokens import MARK, encode_masked, mask_problem
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding.denoising import ORDERS, fill_masks
from transformer.decoding.generation import bucket
from transformer.devices import on_host
from transformer.layers.attention.products import attention_products
from transformer.models.masked_lm import Denoiser, DenoiserConfig
from transformer.training.experiment import Batch, Params
from transformer.training.losses.token_losses import LossConfig
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig, check_row_length


@dataclass(frozen=True)
class DenoisingConfig(Bounded):
    """Filling in the masks of prompts."""

    prompt: str = "def "  # prompt of the samples during and after training
    max_new_tokens: Positive = 64  # masks that are appended to a prompt without any
    steps: Positive = 64  # passes in which all masks of a text are filled in
    order: Annotated[str, OneOf(ORDERS)] = "random"  # which masks are filled in first
    temperature: NonnegativeFloat = 0.8  # sampling temperature; 0: the likeliest token
    num_samples: Positive = 1  # samples per prompt


@dataclass(frozen=True)
class DiffusionConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: DenoiserConfig
    data: TextDataConfig
    loss: LossConfig
    sample: DenoisingConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        check_row_length(self)


class DiffusionLanguageModeling(TextObjective):
    """E_r [1/r sum over masked t of -log p(x_t | the row with a share r masked)] >= -log p(row).

    The bound of a model that masks each token at a time of its own, uniform in (0, 1). Source: Sahoo et al.
    2024 (MDLM), equation 11 with a linear schedule; Nie et al. 2025 (LLaDA), equation 3.
    """

    Config = DiffusionConfig
    weights = ("weights", "bytes", "guessed")
    result_lines = LanguageModeling.result_lines

    def __init__(self, config: DiffusionConfig, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default one is trained on the training text."""
        self.config, self.data = config, NoisedData.of(config.data, tokenizer)
        self.model = Denoiser(config.model, config.model.entries(self.data.special_tokens.vocab_size))

    def hidden(self, params: Params, batch: Batch, **options: Any) -> Any:
        """The last layer's states (b, t, d)."""
        places = {"segments_bt": batch["segments"], "positions_bt": batch["positions"]}
        return self.model.apply({"params": params}, batch["tokens"], **places, **options)

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, the bound in nats per token, and `bits_per_byte`; `masked_nll`, nats per masked token."""
        terms = super().loss(params, {**batch, "weights": batch["guessed"]}, rng, train)
        tokens = Sum.of(batch["weights"]).total
        of_tokens = {
            name: Sum(terms[name].total, tokens) for name in ("loss", "nll", "z_loss") if name in terms
        }
        return terms | of_tokens

    @property
    def attention_products(self) -> float:
        """See `Experiment`."""
        return attention_products(self.config.model.stack(), self.config.data.sequence_length)

    def sample(self, params: Params) -> str:
        """See `TextObjective`."""
        return "\n\n".join(next(self.predict(params, [self.config.sample.prompt])))

    def problem(self, text: str) -> str:
        """Why a text cannot be filled in: a mask has a wrong number, or it is too long."""
        if problem := mask_problem(text):
            return problem
        count, most = len(self.masked_tokens(text)), self.longest
        return f"has {count} tokens with its masks; the model reads {most}" if count > most else ""

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each text `sample.num_samples` texts with its masks, `[MASK]` or `[MASK*12]`, filled in; one
        without any is continued, until its end token.

        Raises:
          UserError: a text is too long.
        """
        tokenizer, special_tokens = self.data.tokenizer, self.data.special_tokens
        for number, text in enumerate(self.checked(texts, first), first):
            tokens = self.masked_tokens(text)
            room = min(bucket(len(tokens), least=16), self.longest)
            tokens_t = np.pad(tokens, (0, room - len(tokens)))
            rng, samples = jax.random.fold_in(jax.random.key(seed), number), self.config.sample.num_samples
            rngs_b = jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(samples))
            filled_bt = on_host(self._fill(params, np.tile(tokens_t, (samples, 1)), len(tokens), rngs_b))
            answers = []
            for row in filled_bt[:, : len(tokens)].tolist():
                if not MARK.search(text) and tokenizer.eos_id in row:
                    row = row[: row.index(tokenizer.eos_id)]
                answers.append(tokenizer.decode([token for token in row if not special_tokens.name(token)]))
            yield answers

    @functools.cached_property
    def _fill(self) -> Callable[..., jax.Array]:
        special_tokens, c = self.data.special_tokens, self.config.sample
        special = jnp.array([special_tokens.mask, special_tokens.cls, special_tokens.sep])

        def fill(params: Params, tokens_bt: jax.Array, length: jax.Array, rngs_b: jax.Array) -> jax.Array:
            there_bt = jnp.broadcast_to(jnp.arange(tokens_bt.shape[1]) < length, tokens_bt.shape)

            def logits(tokens_bt: jax.Array) -> jax.Array:
                x_btd = self.model.apply(
                    {"params": params}, tokens_bt, segments_bt=there_bt.astype(jnp.int32)
                )
                logits_btv = self.model.apply({"params": params}, x_btd, method="unembed")
                return logits_btv.at[..., special].set(-jnp.inf)

            options: Any = {"mask": special_tokens.mask, "steps": c.steps, "order": c.order}
            return fill_masks(logits, tokens_bt, rngs_b, temperature=c.temperature or None, **options)

        return jax.jit(fill)

    def masked_tokens(self, text: str) -> np.ndarray:
        """The tokens of a text with its masks; with those of a continuation, if it has none."""
        mask, more = self.data.special_tokens.mask, self.config.sample.max_new_tokens
        ids = encode_masked(self.data.tokenizer, text, mask)
        return np.array(ids if MARK.search(text) else [*ids, *[mask] * more], np.int32)

    def example_flags(self) -> list[str]:
        """A continuation of the configured prompt."""
        return [f"--prompt={self.config.sample.prompt}"]
