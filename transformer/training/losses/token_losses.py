"""Losses over a vocabulary: the members of `LOSSES` with label smoothing, z-loss and chunks."""

import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from transformer.config import NonnegativeFloat, OneOf, Rate
from transformer.errors import UserError, first_line
from transformer.sums import Sum, named_terms
from transformer.training.experiment import Batch
from transformer.training.losses import LOSSES
from transformer.training.losses.logits_memory import (
    LogitsConfig,
    Loss,
    Unembed,
    chunked,
    token_loss_in_parts,
)


@dataclass(frozen=True)
class LossConfig(LogitsConfig):
    """The loss of each target token.

    Raises:
      UserError: an unknown loss or argument, or a value out of range.
    """

    name: Annotated[str, OneOf(LOSSES)] = "cross_entropy"  # the loss of each token
    label_smoothing: Rate = 0.0  # share of the target probability that is spread over the vocabulary
    z_loss: NonnegativeFloat = 0.0  # coefficient of (log Z)^2, which keeps logits from drifting; 0: off
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further arguments of the loss
    # coefficients of the terms that layers sow, by name; others are only reported
    model_terms: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def _check_parts(self) -> None:
        if self.label_smoothing and self.name != "cross_entropy":
            raise UserError(
                f"vocab_parts: {self.vocab_parts} with name={self.name!r} and label_smoothing="
                f"{self.label_smoothing}, for which all logits of a token are needed; expected 1"
            )

    def _check_loss(self) -> None:
        valid = [*inspect.signature(LOSSES[self.name]).parameters][1:]
        for key in self.arguments:
            if key not in valid:
                problem = f"takes only {', '.join(valid)}" if valid else "takes none"
                raise UserError(f"arguments.{key}: {self.name} {problem}")
        log_p = jax.ShapeDtypeStruct((2, 3), jnp.float32)
        try:
            loss = jax.eval_shape(self.loss, log_p)
        except UserError as error:
            raise UserError(f"arguments.{error}") from None
        except Exception as error:
            reason = first_line(error)
            values = dict(self.arguments)
            raise UserError(f"arguments: {self.name} cannot be used with {values}: {reason}") from error
        if not isinstance(loss, type(log_p)) or (loss.shape, loss.dtype) != (log_p.shape, log_p.dtype):
            # A sum or a mean would be broadcast over the tokens, and an integer has no gradient.
            problem = f"name: {self.name!r} returns {_said(loss)} for log-probabilities {_said(log_p)}"
            raise UserError(f"{problem}; expected a loss of each of them, in the same type")

    checks: ClassVar = {"name": _check_loss, "arguments": _check_loss, "vocab_parts": _check_parts}

    @property
    def loss(self) -> Loss:
        """The loss `name` with its arguments."""
        return functools.partial(LOSSES[self.name], **self.arguments)


def token_losses(
    unembed: Unembed,
    x_btd: jax.Array,
    batch: Batch,
    config: LossConfig,
    vocab_size: int,
    train: bool,
    sown: Any = None,
) -> dict[str, Sum]:
    """The terms of predicting `batch["targets"]` from the states of the last layer, weighted by `weights`.

    `loss` per target token, with label smoothing in training only; `nll`, nats per target token, if the loss
    is not cross-entropy; `bits_per_byte`, if the batch has `bytes`; `z_loss`, if it is on; in training also
    `model_terms(sown, ...)`. `unembed` is the model's.
    """

    values = vocab_size, config.loss, config.label_smoothing if train else 0.0
    nll_bt, loss_bt, log_z_bt = loss_of_states(unembed, x_btd, batch["targets"], config, *values)
    weights_bt = batch["weights"]
    nll = Sum.of(jax.lax.stop_gradient(nll_bt), weights_bt)  # evaluators differentiate by the weights
    terms = {"loss": Sum.of(loss_bt, weights_bt)}
    if config.name != "cross_entropy":
        terms["nll"] = nll
    if "bytes" in batch:
        terms["bits_per_byte"] = Sum(nll.total / math.log(2), Sum.of(batch["bytes"]).total)
    if config.z_loss:
        terms["z_loss"] = Sum.of(config.z_loss * jnp.square(log_z_bt), weights_bt)
    if train and (jax.tree.leaves(sown) or config.model_terms):
        terms |= model_terms(sown, len(weights_bt), config.model_terms)
    return terms


def loss_of_states(
    unembed: Unembed, x_btd: jax.Array, targets_bt: jax.Array, config: LogitsConfig, *values: Any
) -> tuple[jax.Array, ...]:
    """`token_loss(unembed(x_btd), targets_bt, *values)`, with as many logits in memory as `config` says."""
    if config.chunk_size or config.vocab_parts > 1:
        return _loss_in_steps(unembed, x_btd, targets_bt, config, *values)
    return token_loss(unembed(x_btd), targets_bt, *values)


def _loss_in_steps(
    unembed: Unembed, x_btd: jax.Array, targets_bt: jax.Array, config: LogitsConfig, *values: Any
) -> tuple[jax.Array, ...]:
    """The same with the logits of some tokens of the text, or of the vocabulary, in memory at once."""

    def head(x_btd: jax.Array, targets_bt: jax.Array) -> tuple[jax.Array, ...]:
        if config.vocab_parts > 1:
            return token_loss_in_parts(unembed, x_btd, targets_bt, config.vocab_parts, *values)
        return token_loss(unembed(x_btd), targets_bt, *values)

    chunk_size = config.chunk_size
    return chunked(head, x_btd, targets_bt, chunk_size) if chunk_size else head(x_btd, targets_bt)


def token_weights(weights_bt: jax.Array, config: LossConfig) -> dict[str, jax.Array]:
    """The optimised terms of `token_losses` with their weights: the number of target tokens, or for terms of
    the model the number of rows."""
    weight, rows = jnp.sum(weights_bt), jnp.float32(len(weights_bt))
    z_loss = {"z_loss": weight} if config.z_loss else {}
    return {"loss": weight} | z_loss | dict.fromkeys(config.model_terms, rows)


def model_terms(sown: Any, rows: int, coefficients: Mapping[str, float]) -> dict[str, Sum]:
    """The terms that the model's layers sowed (see `named_terms`), for a batch of `rows` rows.

    Terms with a coefficient are multiplied by it and optimised. Their weight over the whole batch is not
    known before all microbatches are computed, so the mean of a microbatch is weighted by its number of rows.
    This is the mean of the whole batch if a layer's weight is proportional to the rows.

    Raises:
      UserError: a coefficient of a term that no layer sows.
    """
    sums = named_terms(sown)
    terms = jax.lax.stop_gradient(sums)
    for name, coefficient in coefficients.items():
        if name not in terms:
            known = f"; expected one of {', '.join(terms)}" if terms else ""
            raise UserError(f"loss.model_terms.{name}: the model's layers return no such term{known}")
        terms[name] = Sum(coefficient * rows * sums[name].mean, float(rows))
    return terms


@jax.named_scope("loss")
def token_loss(
    logits_btv: jax.Array,
    targets_bt: jax.Array,
    vocab_size: int,
    loss: Loss = operator.neg,
    label_smoothing: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The negative log-likelihood, the loss, and log Z of each token, in float32.

    nll = log Z - logit_target, log Z = log sum_v exp(logit_v); loss = (1 - a) f(log p_target) + a mean_v
    f(log p_v), with f the `loss` and a = `label_smoothing`, which is spread over all `vocab_size` tokens
    (Szegedy et al. 2016, section 7). Logits from `vocab_size` on are padding and must be large negative
    numbers.
    """
    logits_btv = logits_btv.astype(jnp.float32)
    log_z_bt = jax.nn.logsumexp(logits_btv, axis=-1)
    # A comparison and a sum fuse with other uses of the logits; the gradient of a gather would be a scatter.
    is_target_btv = jnp.arange(logits_btv.shape[-1]) == targets_bt[..., None]
    nll_bt = log_z_bt - jnp.sum(jnp.where(is_target_btv, logits_btv, 0.0), axis=-1)
    loss_bt = loss(-nll_bt)
    if label_smoothing:
        mean_bt = mean_loss(logits_btv - log_z_bt[..., None], vocab_size, loss)
        loss_bt = (1 - label_smoothing) * loss_bt + label_smoothing * mean_bt
    return nll_bt, loss_bt, log_z_bt


def _said(x: Any) -> str:
    """The shape and type of an array."""
    return f"{x.shape} {x.dtype}" if isinstance(x, jax.ShapeDtypeStruct) else repr(x)


def mean_loss(log_p_btv: jax.Array, vocab_size: int, loss: Loss) -> jax.Array:
    """The mean loss (b, t) over all tokens of the vocabulary."""
    real_v = jnp.arange(log_p_btv.shape[-1]) < vocab_size
    return jnp.sum(jnp.where(real_v, loss(log_p_btv), 0.0), axis=-1) / vocab_size
