"""A run and its shadow: the same run without kernels, low precision, loops, remat, microbatches and mesh."""

import argparse
import contextlib
import copy
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from commands.verification.float64 import Size, in_float64
from commands.verification.module_outputs import Outputs
from commands.verification.plain_layers import plain_layers
from commands.verification.rounding_errors import Precision, Row, by_module, error_of, terms
from experiments import find_experiment
from transformer.config import to_values
from transformer.devices import on_host, platform
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.sums import Sum
from transformer.training.experiment import Batch, Params
from transformer.training.parallel import MeshConfig
from transformer.training.run import Run
from transformer.training.state import State
from transformer.training.step import make_eval_step
from workdir.opening import Overrides, check_config, named, open_run, read_to_train, reopen_run

PLAIN = {
    "model": {"kernel": "reference", "dtype": "float32", "logits_dtype": "float32", "scan_layers": False,
              "remat": "none"},
    "sample": {"weights": "float32", "cache": "auto"}, "generate": {"weights": "float32", "cache": "auto"},
    "loss": {"chunk_size": 0, "vocab_parts": 1},
    "parallel": {"microbatches": 1, "mesh": dataclasses.asdict(MeshConfig(data=1))},
}  # fmt: skip
"""The keys of a shadow, where a config has them."""

JITTER = 0.02
"""Deviation of what is added to parameters of a new run: biases of 0 and scales of 1 would hide errors."""

UNBIASED = 1000.0
"""1 / (1 - b) for b = 0.999: the bias correction of Adam, 1 - b^t, loses as many digits in early steps."""

DECODED_ROWS = 2
PROMPT = 8


def opened(flags: argparse.Namespace, overrides: Overrides, place: str) -> tuple[Run, list[str]]:
    """The run of the flags, a new one in the empty folder `place`, without the dropout that a shadow cannot
    repeat, and notes on what was left out."""
    folder = RunFolder(place) if flags.config else named(flags.workdir)
    if flags.config:
        config = check_config(read_to_train(flags.config, overrides), overrides)
    else:
        config = reopen_run(flags.workdir, overrides).config
    values = to_values(config)
    several = config.parallel.microbatches > 1
    off = {key for key, rate in values["model"].items()
           if key.endswith("dropout") and rate and (several or key == "attention_dropout")}  # fmt: skip
    run = open_run(folder, check_config(_changed(values, {"model": dict.fromkeys(off, 0.0)})))
    run.prepare()
    why = "microbatches draw other masks" if several else "kernels draw masks of their own"
    return run, [f"without {', '.join(sorted(off))}: {why}"] if off else []


def _changed(values: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """The values of a config with those of `keys` that it has, and that it can have."""
    for group, changes in keys.items():
        for key, value in changes.items():
            new = copy.deepcopy(values)
            owners = [new.get(group) or {}, *((new.get(group) or {}).get("layer_kinds") or {}).values()]
            for owner in owners:
                owner |= {key: value} if key in owner else {}
            try:
                check_config(copy.deepcopy(new))
            except UserError:
                continue
            values = new
    return values


class Given:
    """An objective whose gradient is the batch: sum_i p_i g_i."""

    whole_batch = True

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """The product, of weight 1."""
        products = jax.tree.map(lambda p, g: jnp.sum(p * g), params, batch["gradient"])
        return {"loss": Sum(sum(jax.tree.leaves(products)), 1.0)}

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The weight 1."""
        return {"loss": jnp.float32(1)}


def shadow_of(run: Run) -> Run:
    """The run with the keys `PLAIN`, on one device, and with the same tokenizer and labels."""
    plain = check_config(_changed(to_values(run.config), PLAIN))
    data: Any = run.experiment.data
    experiment = find_experiment(plain.experiment)(plain, **data.kept())
    experiment.origin = run.experiment.origin
    shadow = Run(experiment, plain, run.workdir, run.lengths, devices=jax.devices()[:1])
    if experiment.around:
        experiment.around(shadow, shadow.jitted())  # reads what its steps need: a teacher's parameters
    return shadow


class Pair:
    """A run, its shadow, and a state and batches of the run that both get."""

    def __init__(self, run: Run, steps: int) -> None:
        last = run.config.train.steps - 1
        done = 0 if steps else min(int(run.latest_state().step), last)
        here: Any = run.stages.at(done).run if run.config.train.until else run
        self.run = here
        self.plain: Any = shadow_of(here)
        _ = self.plain.abstract  # plain layers make no parameters
        with here.placed():
            state, batches = here.latest_state(), run.loader.iterate(done)
            if steps:
                state = dataclasses.replace(state, params=jittered(state.params))
            step = here.jitted()
            for _ in range(min(steps, last)):
                state, _ = step(state, here.put(next(batches)))
            self.batch = next(batches)
            # At the step of the highest rate where that of the next one is near 0, and its update is rounded.
            rates, at = jax.vmap(here.schedule)(jnp.arange(last + 1)), jnp.minimum(state.step, last)
            at = jnp.where(rates[at] > 0.01 * jnp.max(rates), at, jnp.argmax(rates)).astype(jnp.int32)
            self.state = jax.tree.map(on_host, dataclasses.replace(state, step=at))
        held_out = here.experiment.evaluation_loader("validation").iterate(0)
        self.held_out = next(held_out)

    @functools.cached_property
    def precision(self) -> Precision:
        """That of the run's models; of its optimizer it is float32."""
        single = float(jnp.finfo("float32").eps)
        # Products of float32 are rounded to TF32, of 10 bits, or more coarsely, unless JAX is told not to.
        fast = platform() != "cpu" and jax.config.jax_default_matmul_precision is None  # type: ignore[attr-defined]
        dtype = vars(self.run.config.model).get("dtype", "float32")
        return Precision(max(float(jnp.finfo(dtype).eps), 2.0**-10 * fast), single)

    def rows(self, tokens: int) -> Iterator[Row]:
        """The errors of all parts."""
        (_, here), (_, there), size = self._both(
            lambda run: run.make_step(norms=_trees), self.state, self.batch
        )
        del there["skipped_steps"]
        trees, expected = ({name: values.pop(name) for name in TREES} for values in (here, there))
        bound = self.precision.bound(size)
        optimised = {*self.plain.experiment.weigh(self.batch), "gradient_norm"}
        yield from terms("loss", here, there, optimised, bound)
        yield from by_module("gradient", trees["gradient"], expected["gradient"], bound)
        yield from self._update(trees)
        inputs = self.state.eval_params, self.held_out
        here, there, size = self._both(lambda run: make_eval_step(run.experiment), *inputs)
        yield from terms("evaluation", here, there, optimised, self.precision.bound(size))
        if tokens and self.run.experiment.stepper is not None:
            yield from self._decoded(tokens)

    def _update(self, trees: dict[str, Any]) -> Iterator[Row]:
        """The update for the run's own gradients: an optimizer may amplify the least differences of them."""
        linear: Any = copy.copy(self.plain)
        linear.experiment = Given()
        state = dataclasses.replace(self.state, carry=None)
        (_, there), size = self._there(linear.make_step(norms=_trees), state, {"gradient": trees["gradient"]})
        single = Precision(UNBIASED * self.precision.summed, self.precision.summed)
        yield from by_module("update", trees["update"], there["update"], single.bound(size))

    def _decoded(self, count: int) -> Iterator[Row]:
        batch = self.held_out
        prompts = np.asarray(batch["source" if "source" in batch else "tokens"])[:DECODED_ROWS, :PROMPT]
        params = self.state.eval_params

        def greedy(params: Params, prompts: jax.Array) -> Any:
            return decoded(self.run.experiment, params, prompts, [None] * count)

        logits, chosen = self._here(greedy, params, prompts)
        # By one pass over the longer prompt for each token, where answers continue prompts.
        forced = functools.partial(decoded, self.plain.experiment, whole=self.plain.experiment.continues)
        (expected, _), size = self._there(forced, params, prompts, chosen)
        for number, (here, there) in enumerate(zip(logits, expected, strict=True)):
            yield Row("decoding", f"logits {number}", error_of(here, there), self.precision.bound(size))

    def culprit(self) -> str:
        """Where the outputs of modules in the loss, or their gradients, first differ."""
        rng = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.run.config.seed), self.state.step), 0)
        weights = self.plain.experiment.weigh(self.batch)

        def objective(run: Run, params: Params, batch: Batch, carry: Any) -> jax.Array:
            sums, _ = run.experiment.loss_and_carry(params, batch, carry, rng, True)
            return sum(sums[name].total / jnp.maximum(n, 1e-9) for name, n in weights.items())  # type: ignore[return-value]

        inputs = self.state.params, self.batch, self.state.carry
        for direction, of in ((1, lambda function: function), (-1, jax.grad)):
            here, there = Outputs(1), Outputs(1)
            with nn.intercept_methods(here):
                self._here(of(functools.partial(objective, self.run)), *inputs)
            *_, size = self._there(of(functools.partial(objective, self.plain)), *inputs, observed=there)
            expected = {place.key: place.value for place in there.places(direction)}
            for number, place in enumerate(here.places(direction), 1):
                values = expected.get(place.key)
                if values is None or values.shape != place.value.shape:
                    continue
                bound = self.precision.bound(Size(min(number, size.depth), size.length))
                if not (error := error_of(place.value, values)) <= bound:
                    kind = "output" if direction == 1 else "gradient of the output"
                    return f"the first to differ is the {kind} of {place}: {error:.1e}, bound {bound:.1e}"
        agree = "the outputs of all modules and their gradients agree"
        return f"{agree}: it is behind the last one, or in the gradient of a parameter"

    def _both(self, make: Any, *inputs: Any) -> tuple[Any, Any, Size]:
        there, size = self._there(make(self.plain), *inputs)
        return self._here(make(self.run), *inputs), there, size

    def _here(self, function: Any, *inputs: Any) -> Any:
        """The results of the program of the run."""
        with self.run.placed():
            first, batch, *rest = inputs
            shardings = self.run.shardings
            shardings = shardings if isinstance(first, State) else shardings.params
            batch = self.run.put(batch) if isinstance(batch, dict) else batch
            result = jax.jit(function)(jax.device_put(first, shardings), batch, *rest)
            result = jax.block_until_ready(result)
            jax.effects_barrier()
            return jax.tree.map(on_host, result)

    def _there(self, function: Any, *inputs: Any, observed: Any = None) -> tuple[Any, Size]:
        """The results of the shadow, and its size."""
        with self.plain.placed(), plain_layers(), contextlib.ExitStack() as context:
            if observed is not None:
                context.enter_context(nn.intercept_methods(observed))
            return in_float64(function, *inputs)


def _trees(**trees: Any) -> dict[str, Any]:
    return trees


TREES = ("gradient", "update", "parameter")


def jittered(params: Params) -> Params:
    """The parameters with normal numbers of deviation `JITTER` added."""
    leaves, structure = jax.tree.flatten(params)
    rng = jax.random.key(0)
    moved = [
        x + JITTER * jax.random.normal(jax.random.fold_in(rng, i), x.shape) for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, moved)


def decoded(
    experiment: Any, params: Params, prompts_bt: jax.Array, tokens: Any, whole: bool = False
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The logits (b, v) of each of `tokens`, and the tokens (b); one that is None is the likeliest. With
    `whole`, by one pass over the prompt and all tokens before it."""
    stepper, text_bt, seen = experiment.stepper(params), prompts_bt, []

    def read(room: int) -> Any:
        return stepper.prefill(text_bt, jnp.full(len(text_bt), text_bt.shape[1]), room)

    logits_bv, cache = read(len(tokens))
    for token_b in tokens:
        seen.append((logits_bv, jnp.argmax(logits_bv, axis=-1) if token_b is None else token_b))
        text_bt = jnp.concatenate([text_bt, seen[-1][1][:, None]], axis=1)
        logits_bv, cache = read(1) if whole else stepper.step(seen[-1][1], cache)
    return tuple(map(list, zip(*seen, strict=True)))  # type: ignore[return-value]
