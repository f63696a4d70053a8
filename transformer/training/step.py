"""The training step and the evaluation step, for any experiment, and their compiled programs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.errors import UserError
from transformer.training.experiment import Batch, Objective, Params
from transformer.training.extras.replicas import are_replicas, by_replica
from transformer.training.metrics import Sum
from transformer.training.state import State

TrainStep = Callable[[State, Batch], tuple[State, dict[str, Sum]]]
EvalStep = Callable[[Params, Batch], dict[str, Sum]]


def make_train_step(
    experiment: Objective,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    microbatches: int = 1,
    clip_norm: float = 0.0,
    ema_decay: float = 0.0,
    own_average: Callable[[Any, Params], Params] | None = None,
    stop_gradients: Callable[[Params], Params] = lambda params: params,
    constrain: Callable[[Params], Params] = lambda params: params,
    reshard_for_optimizer: Callable[[Any], Any] = lambda tree: tree,
    norms: Callable[..., dict[str, Sum]] = lambda **trees: {},
) -> TrainStep:
    """(state, batch) -> (state, metrics): one update, exact for any number of microbatches.

    The objective is sum_terms total / weight, with the weight of each term over the *whole* batch, computed
    first. So gradients add up over microbatches for any number of terms and any weights. Gradients are
    clipped to the global norm `clip_norm` (Pascanu et al. 2013, section 3.2; 0: never). If the norm is not
    finite, parameters, optimizer state and average are kept and `skipped` is incremented; step, data and
    carry advance (see `advanced`), and so does the learning rate, which follows the step. `state.ema`, if the
    run keeps one, is updated by `debiased`, or is `own_average(opt_state, params)` of the optimizer.
    `stop_gradients(params)` stops the gradients of frozen parameters, which are not part of the norm.

    Over several devices `constrain` shards gradients and updates as the parameters, and
    `reshard_for_optimizer` shards what the optimizer gets, its state and the gradients, as it computes best.
    `norms` are further metrics of the gradients before clipping, the updates and the new parameters.
    """

    update = optax.with_extra_args_support(optimizer).update

    def train_step(state: State, batch: Batch) -> tuple[State, dict[str, Sum]]:
        rng = jax.random.fold_in(jax.random.key(seed), state.step)
        weights = experiment.weigh(batch)

        def objective(params: Params, rows: Batch, carry: Any, rows_rng: jax.Array) -> tuple[Any, Any]:
            params = stop_gradients(params)
            if carry is None:
                terms = experiment.loss(params, rows, rows_rng, True)
            else:
                terms, carry = experiment.loss_and_carry(params, rows, carry, rows_rng, True)
            terms = {name: term if name in weights else reported(name, term) for name, term in terms.items()}
            sums = _Sums((name, term) for name, term in terms.items() if isinstance(term, Sum))
            # A term without examples in the batch contributes 0 instead of 0 / 0.
            return sum(sums[name].total / jnp.maximum(n, 1e-9) for name, n in weights.items()), (terms, carry)

        gradient = jax.grad(objective, has_aux=True)
        if microbatches == 1:
            inputs = batch, state.carry, jax.random.fold_in(rng, 0)
            gradients, (metrics, carry) = gradient(state.params, *inputs)
        else:
            gradients, metrics, carry = accumulated(gradient, state, batch, rng, microbatches)

        gradients = constrain(gradients)
        norm = optax.tree.norm(gradients)
        finite = jnp.isfinite(norm)
        scale = jnp.minimum(1.0, clip_norm / jnp.maximum(norm, 1e-9)) if clip_norm else 1.0
        clipped = jax.tree.map(lambda g: g * scale, gradients)
        with jax.named_scope("optimizer"):
            inputs = reshard_for_optimizer((clipped, state.opt_state))
            updates, opt_state = reshard_for_optimizer(update(*inputs, state.params, step=state.step))
            params = optax.apply_updates(state.params, constrain(updates))
        ema = None if state.ema is None else averaged(state, opt_state, params, ema_decay, own_average)
        new = dataclasses.replace(state, params=params, opt_state=opt_state, ema=ema)
        new = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, state)
        metrics["gradient_norm"] = Sum.of(norm)
        metrics["skipped_steps"] = Sum.of(1.0 - finite)
        metrics |= norms(gradient=gradients, update=updates, parameter=params)
        skipped = state.skipped + (1 - finite.astype(jnp.int32))
        carry = None if carry is None else advanced(carry, experiment.initial_carry())
        return dataclasses.replace(new, step=state.step + 1, skipped=skipped, carry=carry), metrics

    return train_step


class _Sums(dict[str, Sum]):
    """The terms of `loss` that are `Sum`s, as all that `weigh` names must be."""

    def __missing__(self, name: str) -> NoReturn:
        raise UserError(
            f"`weigh` names the term {name!r}, and `loss` returns no Sum of that name; Sums there: "
            f"{', '.join(self) or 'none'}: return one, Sum.of(values, weights), or leave it out of `weigh`"
        )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def reported(name: str, term: Sum) -> Sum:
    """A term of the loss that is only reported: the same `Sum`.

    Raises:
      UserError: it is differentiated, so it has a gradient that would be dropped.
    """
    return term


@reported.defjvp
def _refused(name: str, *_: Any) -> NoReturn:
    raise UserError(
        f"the term {name!r} of `loss` has a gradient, but `weigh` does not name it: name it there to "
        "optimise it, or report Sum.of(jax.lax.stop_gradient(values), weights)"
    )


def accumulated(
    gradient: Callable[..., Any], state: State, batch: Batch, rng: jax.Array, microbatches: int
) -> tuple[Params, dict[str, Sum], Any]:
    """The gradient, the terms and the carry of a batch, accumulated over microbatches; by each device on its
    own where all have all parameters (see `replicas`)."""

    def of_rows(params: Params, rows: tuple[dict[str, Any], Any], rng: jax.Array) -> Any:
        def add(total: Params, inputs: tuple[jax.Array, Batch, Any]) -> tuple[Params, Any]:
            index, microbatch, carry = inputs
            gradients, outputs = gradient(params, microbatch, carry, jax.random.fold_in(rng, index))
            return jax.tree.map(jnp.add, total, gradients), outputs

        zeros = jax.tree.map(jnp.zeros_like, params)
        parts = split_rows(rows, microbatches)
        gradients, (terms, carries) = jax.lax.scan(add, zeros, (jnp.arange(microbatches), *parts))
        return gradients, jax.tree.map(lambda x: jnp.sum(x, axis=0), terms), join_rows(carries)

    accumulate = by_replica(of_rows) if are_replicas(jax.sharding.get_abstract_mesh()) else of_rows
    return accumulate(state.params, (dict(batch), state.carry), rng)


def advanced(carry: Any, initial: Any) -> Any:
    """The carry for the next batch: of rows with a value that is not finite the initial one.

    The carry belongs to the text that was read, also if the parameters were not updated: with an older carry
    the next batch would continue another text.
    """
    finite = [jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(carry)]
    finite_b = functools.reduce(jnp.logical_and, finite)

    def choose(new: jax.Array, first: jax.Array) -> jax.Array:
        return jnp.where(finite_b.reshape(-1, *[1] * (new.ndim - 1)), new, first)

    return jax.tree.map(choose, carry, initial)


def averaged(
    state: State,
    opt_state: Any,
    params: Params,
    decay: float,
    own_average: Callable[[Any, Params], Params] | None,
) -> Params:
    """`state.ema` after the update to `params` and `opt_state`."""
    if own_average is not None:
        return own_average(opt_state, params)
    return debiased(state.ema, params, decay, state.step + 1 - state.skipped)


def debiased(ema: Params, params: Params, decay: float, update: jax.Array) -> Params:
    """The bias-corrected exponential moving average of the parameters after updates 1 ... u:

    ema_u = sum_i d^(u - i) (1 - d) p_i / (1 - d^u) = ema_(u-1) + (1 - d) / (1 - d^u) (p_u - ema_(u-1)),

    corrected as the moments of Adam (Kingma and Ba 2015, section 3). After one update it equals the
    parameters.
    """
    log = float(np.log(decay)) if decay else -np.inf
    weight = (1 - decay) / -jnp.expm1(update * log)  # 1 - d^u would lose precision for d near 1
    return jax.tree.map(lambda mean, new: mean + weight * (new - mean), ema, params)


def make_eval_step(experiment: Objective) -> EvalStep:
    """(params, batch) -> every term of the loss, without dropout."""

    def eval_step(params: Params, batch: Batch) -> dict[str, Sum]:
        return experiment.loss(params, batch, jax.random.key(0), False)

    return eval_step


def in_microbatches(step: Callable[..., Any], parts: int) -> Callable[..., Any]:
    """`step`, (params, batch, ...) -> {name: Sum} or ({name: Sum}, ...), applied to `parts` of the rows in
    turn, to save memory.

    All arguments but `params`, and all results but `Sum`s, have a leading axis of rows. `Sum`s are added, so
    they are the same as for all rows at once.
    """
    if parts == 1:
        return step

    def in_turn(params: Params, *inputs: Any) -> Any:
        _, output = jax.lax.scan(lambda _, rows: (None, step(params, *rows)), None, split_rows(inputs, parts))
        terms, *rows = output if isinstance(output, tuple) else (output,)
        added = jax.tree.map(lambda x: jnp.sum(x, axis=0), terms)
        return (added, *join_rows(rows)) if isinstance(output, tuple) else added

    return in_turn


def split_rows(batch: Any, parts: int) -> Any:
    """(b, ...) -> (parts, b / parts, ...): each part takes every parts-th row, so that the rows of a sharded
    batch stay on their devices."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1), batch)


def join_rows(parts: Any) -> Any:
    """The inverse of `split_rows`."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), parts)


@dataclasses.dataclass
class CompiledStep:
    """A jitted function, compiled by its first call for the shapes, types and shardings of that call."""

    function: Any  # the result of `jax.jit`
    compiler_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    _compiled: jax.stages.Compiled | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The function's result; with `JAX_DISABLE_JIT` operation by operation, for debugging."""
        return (self.function if jax.config.jax_disable_jit else self.compile(*arguments))(*arguments)  # type: ignore[attr-defined]

    def compile(self, *arguments: Any) -> jax.stages.Compiled:
        """The program, compiled for these arguments if it has not been."""
        if self._compiled is None:
            self._compiled = self.function.lower(*arguments).compile(compiler_options=self.compiler_options)
        return self._compiled

    @property
    def memory_gb(self) -> float | None:
        """The memory of a call, in GiB on each device; None before the first call, and where XLA has no
        analysis."""
        return None if self._compiled is None else memory_gb(self._compiled)


def memory_gb(compiled: jax.stages.Compiled) -> float | None:
    """Arguments, results and temporary buffers in GiB, with donated arguments counted once."""
    sizes: Any = compiled.memory_analysis()
    if sizes is None:
        return None
    buffers = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return (buffers + sizes.temp_size_in_bytes) / 2**30
