"""Losses over a vocabulary: cross-entropy with its options, whole or in chunks."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from transformer.errors import UserError
from transformer.training.experiment import Batch
from transformer.training.metrics import Sum


@dataclass(frozen=True)
class LossConfig:
    """How the next-token loss is formed; `configs/base/` says what each key means."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    chunk_size: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing: {self.label_smoothing}; expected a share in [0, 1)")
        if self.z_loss < 0:
            raise UserError(f"z_loss: {self.z_loss}; expected a coefficient of at least 0")
        if self.chunk_size < 0:
            raise UserError(f"chunk_size: {self.chunk_size}; expected a number of tokens, or 0 for no chunks")


def token_losses(
    unembed: Callable[[jax.Array], jax.Array],
    x_btd: jax.Array,
    batch: Batch,
    config: LossConfig,
    vocab_size: int,
    train: bool,
) -> dict[str, Sum]:
    """The terms of predicting `batch["targets"]` from the model's last layer, each counted `weights` times.

    `loss`: nats per target token, smoothed in training only; `bits_per_byte` of the targets' text, where the
    batch has its `bytes`; `z_loss`, where the config asks for it. `unembed` turns (b, t, d) into
    logits (b, t, v).
    """

    def head(x_btd: jax.Array, targets_bt: jax.Array) -> tuple[jax.Array, ...]:
        smoothing = config.label_smoothing if train else 0.0
        return cross_entropy(unembed(x_btd), targets_bt, vocab_size=vocab_size, label_smoothing=smoothing)

    nll_bt, loss_bt, log_z_bt = chunked(head, x_btd, batch["targets"], config.chunk_size)
    weights_bt = batch["weights"]
    terms = {"loss": Sum.of(loss_bt, weights_bt)}
    if "bytes" in batch:
        bits = Sum.of(nll_bt, weights_bt).total / math.log(2)
        terms["bits_per_byte"] = Sum(bits, Sum.of(batch["bytes"]).total)
    if config.z_loss:
        terms["z_loss"] = Sum.of(config.z_loss * jnp.square(log_z_bt), weights_bt)
    return terms


def cross_entropy(
    logits_btv: jax.Array, targets_bt: jax.Array, *, vocab_size: int, label_smoothing: float = 0.0
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Per token, in float32: the negative log-likelihood, the smoothed loss, and log Z.

    nll = log Z - logit_target, log Z = log sum_v exp(logit_v);
    smoothed = (1 - a) nll + a (log Z - mean_v logit_v), a = label_smoothing: the cross-entropy against a
    target that keeps 1 - a of its mass and spreads a over all `vocab_size` tokens (Szegedy et al. 2016,
    section 7). Logits past `vocab_size` are the padding of the vocabulary; they must be hugely negative.
    """
    logits_btv = logits_btv.astype(jnp.float32)
    log_z_bt = jax.nn.logsumexp(logits_btv, axis=-1)
    # A comparison and a sum fuse with the logits' other readers; a gather's gradient would be a scatter.
    is_target_btv = jnp.arange(logits_btv.shape[-1]) == targets_bt[..., None]
    nll_bt = log_z_bt - jnp.sum(jnp.where(is_target_btv, logits_btv, 0.0), axis=-1)
    if not label_smoothing:
        return nll_bt, nll_bt, log_z_bt
    real_v = jnp.arange(logits_btv.shape[-1]) < vocab_size
    mean_bt = jnp.sum(jnp.where(real_v, logits_btv, 0.0), axis=-1) / vocab_size
    smoothed_bt = (1 - label_smoothing) * nll_bt + label_smoothing * (log_z_bt - mean_bt)
    return nll_bt, smoothed_bt, log_z_bt


def chunked(
    f: Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]],
    x_btd: jax.Array,
    targets_bt: jax.Array,
    chunk_size: int,
) -> tuple[jax.Array, ...]:
    """f(x_btd, targets_bt), computed `chunk_size` positions of time at a time and recomputed backward.

    For an f that goes through the logits, so that never more than b * chunk_size rows of them exist.
    0 means all at once. A last chunk that is not full is padded, and the padding's results cut off.
    """
    batch, t = targets_bt.shape
    if not chunk_size or chunk_size >= t:
        return f(x_btd, targets_bt)
    count = -(-t // chunk_size)
    padding = count * chunk_size - t

    def split(a: jax.Array) -> jax.Array:
        a = jnp.pad(a, ((0, 0), (0, padding)) + ((0, 0),) * (a.ndim - 2))
        return a.reshape(batch, count, chunk_size, *a.shape[2:]).swapaxes(0, 1)

    _, results = jax.lax.scan(
        lambda _, chunk: (None, jax.checkpoint(f)(*chunk)), None, (split(x_btd), split(targets_bt))
    )
    return tuple(r.swapaxes(0, 1).reshape(batch, -1)[:, :t] for r in results)
