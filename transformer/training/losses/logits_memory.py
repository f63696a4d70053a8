"""Logits of large vocabularies: those of some tokens of the text, or of the vocabulary, in memory at once."""

import operator
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from transformer.config import Bounded, Nonnegative, Positive
from transformer.devices import sharded_over
from transformer.errors import UserError

Loss = Callable[[jax.Array], jax.Array]
"""Log-probabilities of targets -> losses."""

Part = Callable[[jax.Array, int], jax.Array]
"""As in `transformer.layers.embedding`: (x, axis) -> some of the tokens that lie along the axis."""

Unembed = Callable[..., jax.Array]
"""States (b, t, d), and optionally a `Part` -> logits (b, t, v)."""


@dataclass(frozen=True)
class LogitsConfig(Bounded):
    """The number of logits in memory at once.

    Raises:
      UserError: a value out of range.
    """

    chunk_size: Nonnegative = 0  # tokens whose logits are in memory at once; 0: all
    vocab_parts: Positive = 1  # equal parts of the vocabulary whose logits are in memory one after another


@jax.named_scope("loss")
def token_loss_in_parts(
    unembed: Unembed,
    x_btd: jax.Array,
    targets_bt: jax.Array,
    parts: int,
    vocab_size: int,
    loss: Loss = operator.neg,
    label_smoothing: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`token_loss` of the logits unembed(x): nll, loss and log Z of each token (b, t), in float32.

    log Z = log sum_k Z_k, where Z_k belongs to one of `parts` equal parts of the vocabulary. Its logits are
    rematerialised in the backward pass, so that at most b t v / parts of them are in memory. Where devices
    share the projection's parameters, each gathers them part by part, and reduces their gradients so; no
    device has all of them. `label_smoothing` is for `loss` -log p alone.

    Raises:
      UserError: the padded vocabulary does not have this many equal parts on each device.
    """

    arrays_k: list[jax.Array] = []

    def all_parts(x: jax.Array, axis: int) -> jax.Array:
        arrays_k.append(vocabulary_parts(x, axis, parts))
        return arrays_k[-1][0]

    # The arrays that are divided are those that the projection asks parts of, here for no token. As inputs of
    # the scan they get the gradient of a part once; that of a closure would add an array of the size of the
    # whole for each part.
    width = unembed(x_btd[:, :0], all_parts).shape[-1]
    all_parts(jnp.arange(width * parts), 0)

    @jax.checkpoint
    def statistics(x_btd: jax.Array, arrays: list[jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        *rest, tokens_v = arrays
        in_order = iter(rest)
        logits_btv = unembed(x_btd, lambda x, axis: next(in_order)).astype(jnp.float32)
        is_real_v, is_target_btv = tokens_v < vocab_size, tokens_v == targets_bt[..., None]
        # Finite, since the gradient of a part of padding alone would be 0 times infinity.
        real_btv = jnp.where(is_real_v, logits_btv, jnp.finfo(jnp.float32).min)
        log_z_bt = jax.nn.logsumexp(real_btv, axis=-1)
        return log_z_bt, masked_sum(logits_btv, is_target_btv), masked_sum(logits_btv, is_real_v)

    # In float32, since the gradients of all parts are added up in the type of x.
    x_btd = x_btd.astype(jnp.float32)
    _, (log_z_kbt, target_kbt, sum_kbt) = jax.lax.scan(
        lambda _, arrays: (None, statistics(x_btd, arrays)), None, arrays_k
    )
    log_z_bt = jax.nn.logsumexp(log_z_kbt, axis=0)
    nll_bt = log_z_bt - target_kbt.sum(axis=0)
    loss_bt = loss(-nll_bt)
    if label_smoothing:
        mean_bt = log_z_bt - sum_kbt.sum(axis=0) / vocab_size
        loss_bt = (1 - label_smoothing) * loss_bt + label_smoothing * mean_bt
    return nll_bt, loss_bt, log_z_bt


def masked_sum(logits_btv: jax.Array, mask: jax.Array) -> jax.Array:
    """The sum (b, t) of the logits under a mask."""
    return jnp.sum(jnp.where(mask, logits_btv, 0.0), axis=-1)


def vocabulary_parts(x: jax.Array, axis: int, parts: int) -> jax.Array:
    """The parts of x along the axis of the vocabulary, on a new first axis. Part k has of each device's
    tokens the k-th of `parts` equal runs, so that a part is divided over devices as the whole."""
    before, (size, *after), (_, shards) = x.shape[:axis], x.shape[axis:], sharded_over("vocab")
    if size % (shards * parts):
        local, on_each = size // shards, f" of each of {shards} devices" if shards > 1 else ""
        nearest = min((n for n in range(1, local + 1) if local % n == 0), key=lambda n: abs(n - parts))
        raise UserError(
            f"config.loss.vocab_parts: {parts} does not divide the {local} tokens{on_each} (the "
            "vocabulary with its padding); expected a divisor such as "
            f"{nearest}, or another model.vocab_multiple"
        )
    x = jnp.moveaxis(x.reshape(*before, shards, parts, -1, *after), axis + 1, 0)
    return x.reshape(parts, *before, -1, *after)


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
