"""Losses over a vocabulary: the members of `LOSSES` with label smoothing, z-loss and chunks."""

import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from transformer.config import Bounded, Nonnegative, NonnegativeFloat, OneOf, Rate
from transformer.devices import sharded_over
from transformer.errors import UserError
from transformer.sums import Sum, named_terms
from transformer.training.experiment import Batch
from transformer.training.losses import LOSSES

Loss = Callable[[jax.Array], jax.Array]
"""Log-probabilities of targets -> losses."""


@dataclass(frozen=True)
class LossConfig(Bounded):
    """The loss of each target token.

    Raises:
      UserError: an unknown loss or argument, or a value out of range.
    """

    name: Annotated[str, OneOf(LOSSES)] = "cross_entropy"  # the loss of each token
    label_smoothing: Rate = 0.0  # share of the target probability that is spread over the vocabulary
    z_loss: NonnegativeFloat = 0.0  # coefficient of (log Z)^2, which keeps logits from drifting; 0: off
    chunk_size: Nonnegative = 0  # tokens whose logits are in memory at once; 0: all
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further arguments of the loss
    # coefficients of the terms that layers sow, by name; others are only reported
    model_terms: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arguments:
            self._check_arguments()

    def _check_arguments(self) -> None:
        valid = [*inspect.signature(LOSSES[self.name]).parameters][1:]
        for key in self.arguments:
            if key not in valid:
                what = f"takes only {', '.join(valid)}" if valid else "takes none"
                raise UserError(f"arguments.{key}: {self.name} {what}")
        try:
            jax.eval_shape(self.loss, jax.ShapeDtypeStruct((1,), jnp.float32))
        except UserError as error:
            raise UserError(f"arguments.{error}") from None
        except Exception as error:
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            given = dict(self.arguments)
            raise UserError(f"arguments: {self.name} cannot be used with {given}: {reason}") from error

    @property
    def loss(self) -> Loss:
        """The loss `name` with its arguments."""
        return functools.partial(LOSSES[self.name], **self.arguments)


def token_losses(
    unembed: Callable[[jax.Array], jax.Array],
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
    `model_terms(sown, ...)`. `unembed` maps (b, t, d) to logits (b, t, v).
    """

    def head(x_btd: jax.Array, targets_bt: jax.Array) -> tuple[jax.Array, ...]:
        smoothing = config.label_smoothing if train else 0.0
        return token_loss(unembed(x_btd), targets_bt, vocab_size, config.loss, smoothing)

    if config.chunk_size:
        nll_bt, loss_bt, log_z_bt = chunked(head, x_btd, batch["targets"], config.chunk_size)
    else:
        nll_bt, loss_bt, log_z_bt = head(x_btd, batch["targets"])
    weights_bt = batch["weights"]
    nll = Sum.of(nll_bt, weights_bt)
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
    terms = named_terms(sown)
    for name, coefficient in coefficients.items():
        if name not in terms:
            known = f"; expected one of {', '.join(terms)}" if terms else ""
            raise UserError(f"loss.model_terms.{name}: the model's layers return no such term{known}")
        terms[name] = Sum(coefficient * rows * terms[name].mean, float(rows))
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


def mean_loss(log_p_btv: jax.Array, vocab_size: int, loss: Loss) -> jax.Array:
    """The mean loss (b, t) over all tokens of the vocabulary."""
    real_v = jnp.arange(log_p_btv.shape[-1]) < vocab_size
    return jnp.sum(jnp.where(real_v, loss(log_p_btv), 0.0), axis=-1) / vocab_size


def chunked(
    f: Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]],
    x_btd: jax.Array,
    targets_bt: jax.Array,
    chunk_size: int,
) -> tuple[jax.Array, ...]:
    """f(x_btd, targets_bt), computed in chunks of `chunk_size` positions and rematerialised in the backward
    pass.

    If f computes logits, at most b * chunk_size rows of them are in memory. 0: one chunk. The last chunk is
    padded, and the results of the padding are dropped. Each of several devices gathers the parameters that f
    uses before its first chunk, and sums its gradients over all chunks before they are reduced: over the mesh
    axes that divide parameters first, so that the others add up only a part of them.
    """
    b, t = targets_bt.shape
    (of_batch, rows), (of_length, columns) = sharded_over("batch"), sharded_over("length")
    if not chunk_size or chunk_size >= t:
        return f(x_btd, targets_bt)
    if rows * columns == 1 or b % rows or t % columns:
        return _in_chunks(f, x_btd, targets_bt, chunk_size)
    chunk_size, axes = -(-chunk_size // columns), (*of_batch, *of_length)

    def split(x: jax.Array) -> jax.Array:
        x = x.reshape(rows, b // rows, columns, t // columns, *x.shape[2:]).swapaxes(1, 2)
        return _divided(x.reshape(rows * columns, *x.shape[2:]), axes)

    def join(x: jax.Array) -> jax.Array:
        return x.reshape(rows, columns, *x.shape[1:]).swapaxes(1, 2).reshape(b, t)

    parts = split(x_btd), split(targets_bt)
    chunk = (jax.ShapeDtypeStruct((x.shape[1], chunk_size, *x.shape[3:]), x.dtype) for x in parts)
    with nn.logical_axis_rules(()):  # within a part there is no batch or length to divide
        f, parameters = jax.closure_convert(f, *chunk)
    copies = [_divided(_copied(x, axes).reshape(rows * columns, *x.shape), axes) for x in parameters]

    def part(x_btd: jax.Array, targets_bt: jax.Array, *parameters: jax.Array) -> tuple[jax.Array, ...]:
        return _in_chunks(lambda *chunk: f(*chunk, *parameters), x_btd, targets_bt, chunk_size)

    return tuple(map(join, jax.vmap(part)(*parts, *copies)))


def _copied(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """One x for each place along mesh axes, (*sizes of the axes, *x.shape); made first along the axes that do
    not divide parameters, since gradients take the way back."""
    shape, sizes = x.shape, jax.sharding.get_abstract_mesh().shape
    inside, _ = sharded_over("embed")
    for there in (set(axes) - set(inside), set(axes)):
        x = jnp.broadcast_to(x, (*(sizes[axis] if axis in there else 1 for axis in axes), *shape))
        places = [axis if axis in there else None for axis in axes]
        spec = PartitionSpec(*places, *[PartitionSpec.UNCONSTRAINED] * len(shape))
        x = jax.lax.with_sharding_constraint(x, spec)
    return x


def _divided(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """x with its first axis divided over mesh axes, the others as the compiler finds best."""
    spec = PartitionSpec(axes, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
    return jax.lax.with_sharding_constraint(x, spec)


def _in_chunks(
    f: Callable, x_btd: jax.Array, targets_bt: jax.Array, chunk_size: int
) -> tuple[jax.Array, ...]:
    batch, t = targets_bt.shape
    count = -(-t // chunk_size)
    padding = count * chunk_size - t

    def split(a: jax.Array) -> jax.Array:
        a = jnp.pad(a, ((0, 0), (0, padding)) + ((0, 0),) * (a.ndim - 2))
        return a.reshape(batch, count, chunk_size, *a.shape[2:]).swapaxes(0, 1)

    _, results = jax.lax.scan(
        lambda _, chunk: (None, jax.checkpoint(f)(*chunk)), None, (split(x_btd), split(targets_bt))
    )
    return tuple(r.swapaxes(0, 1).reshape(batch, -1)[:, :t] for r in results)
