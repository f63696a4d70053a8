"""A run of an experiment: the sharded state, the run folder, and all parts put together."""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

from transformer.run_folder import RunFolder
from transformer.training import parallel
from transformer.training.checkpoints.checkpoint import Checkpoints, Step, trained_steps
from transformer.training.checkpoints.initialize import Checkpoint, WarmStart, mean
from transformer.training.experiment import Batches, Objective, Params, Put
from transformer.training.extras.compiler_options import check_compiler_options, options_for
from transformer.training.extras.divergence import Watch
from transformer.training.extras.evaluated_sets import evaluators_of_sets
from transformer.training.extras.step_options import step_options
from transformer.training.extras.stragglers import Stragglers
from transformer.training.hooks import Evaluate, Evaluator, Hook, Profile, check_measured
from transformer.training.logging.throughput import peak_flops, run_flops_per_token
from transformer.training.logging.writers import EXTRAS, LatestValues, check_installed, make_writers, names_of
from transformer.training.loop import train
from transformer.training.metrics import Meter
from transformer.training.optim.initial_values import redraw
from transformer.training.optim.optimizer import Lengths, make_optimizer, make_schedule
from transformer.training.optim.parametrization import Parametrization
from transformer.training.optim.roles import Roles, roles_of
from transformer.training.optim.rules import check_rules
from transformer.training.optim.schedules import Schedule
from transformer.training.partition import SMALL, check_divided, check_memory
from transformer.training.run_config import RunConfig, asks_layers
from transformer.training.state import State
from transformer.training.step import CompiledStep, TrainStep, make_train_step

jit_once = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
"""`jax.jit` for a program that runs once. On CPUs the first state of `configs/lm.py` compiles in 1 s instead
of 4, with the same bits."""


@dataclasses.dataclass(eq=False)
class Run:
    """An experiment under a config on the available devices, with `workdir` as its folder.

    Everything that makes or reads the training state is here, so that training, evaluation and prediction
    agree on the content of checkpoints and the sharding of arrays. The constructor computes and writes
    nothing, but raises `UserError` for an impossible mesh or batch size.
    """

    experiment: Objective
    config: RunConfig
    workdir: str | os.PathLike
    lengths: Lengths = ()  # where `train.steps` was changed (see `make_optimizer`)
    extra_hooks: Sequence[Hook] = ()  # called after the run's own
    devices: Sequence[jax.Device] | None = None  # None: all; may be descriptions of devices
    init: Callable[[jax.Array], Any] = dataclasses.field(init=False)  # initial parameters, boxed
    mup: Parametrization | None = dataclasses.field(init=False, default=None)  # None: not by muP

    def __post_init__(self) -> None:
        c, self.folder, model = self.config, RunFolder(self.workdir), self.experiment.config.model
        self.init, self.layers = self.experiment.init, model.layers
        if model.parametrization != "standard":
            self.mup = Parametrization(self.init, c, self.layers)
            self.init = self.mup.initial
        self.mesh = parallel.make_mesh(c.parallel.mesh, self.devices)
        self.rules = parallel.RULES[c.parallel.rules]
        self.compiler_options: dict[str, Any] = {}
        if (options := c.parallel.compiler_options) or c.deterministic or model.scan_layers:
            self.compiler_options = options_for(options, c.deterministic, model.scan_layers, self.mesh)
        if self.mesh.size * c.parallel.microbatches > 1:
            parallel.check_batch_sizes(c, self.mesh)
        self.latest = LatestValues()
        self.put: Put = functools.partial(parallel.put_batch, sharding=parallel.batch_sharding(self.mesh))

    def placed(self) -> contextlib.AbstractContextManager[None]:
        """The context (mesh and sharding rules) for tracing and calling this run's functions."""
        return parallel.placed(self.mesh, self.rules)

    @functools.cached_property
    def roles(self) -> Roles:
        """The role of each parameter by its path."""
        return roles_of(lambda: self.boxed)

    @functools.cached_property
    def schedule(self) -> Schedule:
        """The learning rate after each number of steps; raises `UserError` if it is impossible."""
        return make_schedule(self.config.optimizer, self.config.train.steps, self.lengths)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer; raises as `schedule`."""
        c = self.config
        optimizer, _ = make_optimizer(c.optimizer, c.train.steps, self.lengths, self.layers, self.roles)
        return self.mup.scaled(optimizer) if self.mup else optimizer

    @functools.cached_property
    def loader(self) -> Batches:
        """The training batches; errors of the data are raised here."""
        with self.placed():
            return self.stages.batches() if self.config.train.until else self.experiment.train_data()

    @functools.cached_property
    def stages(self) -> Any:
        """The `Stages` of `train.until`; raises if a batch size in it is impossible."""
        from transformer.training.extras.stages import Stages

        return Stages(self)

    @functools.cached_property
    def hooks(self) -> list[Hook]:
        """The hooks of training; errors of the validation data are raised here."""
        c, more = self.config.train, [*self.experiment.hooks(self.folder), *self.extra_hooks]
        slow = [Stragglers(c.devices_every)] if c.devices_every else []
        profile = Profile(c.profile_from, c.profile_steps, self.folder.profile)
        return [Evaluate(c.evaluate_every, self.validation, c.keep_best), profile, *slow, *more]

    @functools.cached_property
    def validation(self) -> dict[str, Evaluator]:
        """The evaluators of training, made once: experiments plot the results of their own."""
        return self.evaluators()

    def create(self) -> Any:
        """The initial state, with parameters boxed with their logical axes."""
        rng, c = jax.random.key(self.config.seed), self.config.optimizer
        params = self.init(rng)
        if std := self.config.initialize_std:
            params = redraw(params, jax.random.fold_in(rng, 1), std)
        carry = jax.tree.map(parallel.by_rows, self.experiment.initial_carry())
        return State.create(params, self.optimizer, c.ema_decay > 0 or c.averages_itself, carry)

    @functools.cached_property
    def boxed(self) -> Params:
        """The shapes of the parameters, boxed with their logical axes."""
        return jax.eval_shape(self.experiment.init, jax.random.key(0))

    @functools.cached_property
    def abstract_params(self) -> Params:
        """The parameters of `abstract`, for which no optimizer is needed."""
        with self.placed():
            shardings = parallel.param_shardings(self.boxed, self.mesh, self.rules)
        return parallel.with_shardings(self.boxed, shardings)

    @functools.cached_property
    def abstract(self) -> State:
        """The state as `jax.ShapeDtypeStruct`s with shardings; raises if too much is whole on each device."""
        with self.placed():
            boxed = jax.eval_shape(self.create)
            shardings = parallel.state_shardings(boxed, self.mesh, self.rules)
        if self.mesh.size > 1:
            check_divided(boxed.params, shardings.params, self.mesh)
        return parallel.with_shardings(boxed, shardings)

    @functools.cached_property
    def shardings(self) -> State:
        """The sharding of every array of the state."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract)

    def prepare(self) -> None:
        """Opens the data and derives all shapes, so that errors are raised before anything is written."""
        c = self.config
        if any(name in c.train.writers for name in EXTRAS):
            check_installed(names_of(c.train.writers))
        if self.compiler_options:
            check_compiler_options(self.compiler_options, self.mesh)
        size = sum(leaf.size for leaf in jax.tree.leaves(self.abstract))
        if max(size, c.train.batch_size * self.experiment.tokens_per_example) > SMALL:
            check_memory(self)
        _ = self.loader, self.hooks, self.warm_start
        if c.optimizer.has_rules:
            check_rules(self.abstract.params, c.optimizer, self.layers, self.roles)
        if c.train.keep_best:
            with self.placed():
                check_measured(c.train.keep_best.removeprefix("-"), self.validation, self.abstract.params)
        if asks_layers(c):
            _ = (self.stages if c.train.until else self).traced()

    @functools.cached_property
    def warm_start(self) -> WarmStart | None:
        """The warm start of a new run; None without one, or if the run has started."""
        trained = trained_steps(self.folder.checkpoints)
        return self._plan_warm_start() if self.config.initialize_from and not trained else None

    def _plan_warm_start(self) -> WarmStart:
        c = self.config
        may_be_new = self.experiment.heads if c.initialize_strict else None
        labels = self.experiment.data.kept().get("labels")
        find = self.experiment.origin or Checkpoint.named
        origin = self.experiment.converted(find(c.initialize_from))
        return WarmStart.plan(origin, self.abstract.params, may_be_new, labels, c)

    def checkpoints(self, write: bool) -> Checkpoints:
        """The checkpoints in the folder."""
        c = self.config.train
        return Checkpoints(self.folder.checkpoints, keep_last=c.keep_last, keep_best=c.keep_best, write=write)

    def averaged_steps(self, step: Step = "latest") -> list[int]:
        """The steps of the checkpoints that `restore_params` averages; raises as `restore_params`."""
        checkpoints, count = self.checkpoints(write=False), self.config.train.average_last
        last = checkpoints.find(step)
        return checkpoints.steps()[-count:] if step == "latest" and count > 1 else [last]

    def restore_params(self, step: Step = "latest") -> Params:
        """The parameters of a checkpoint for evaluation and prediction. For "latest", the mean of the last
        `train.average_last` checkpoints (Vaswani et al. 2017, section 6.1)."""
        first, *rest = self.averaged_steps(step)
        restore = functools.partial(self.checkpoints(write=False).restore_params, self.abstract_params)
        return mean(map(restore, (first, *rest))) if rest else restore(first)

    def train(self, started: float | None = None) -> tuple[State, str]:
        """Trains to the end, resuming from the latest checkpoint; returns the last state and why training
        ended. `started` is the start of the program by `time.perf_counter()`."""
        started = time.perf_counter() if started is None else started
        with self.placed(), self.checkpoints(write=True) as checkpoints:
            state = checkpoints.restore(self.abstract) if checkpoints.steps() else self.first_state()
            step = self.train_step(done := int(state.step))
            meter = self._meter(int(state.skipped), started, lambda: step.memory_gb)
            writers = make_writers(self.folder, done, names_of(self.config.train.writers))
            return train(self, state, step, meter, [*writers, self.latest], checkpoints)

    def train_step(self, done: int = 0) -> Any:
        """The train step from the state after `done` steps on; it is compiled by the first call."""
        c, e, step = self.config.train, self.experiment, CompiledStep(self.jitted(), self.compiler_options)
        return self._other_step(step, done) if c.until or c.log_norms or c.log_attention or e.around else step

    def _other_step(self, step: CompiledStep, done: int) -> Any:
        if self.config.train.until:
            return self.stages.step(done)
        from transformer.training.extras import measured

        return measured.make(self, step, done)

    def latest_state(self) -> State:
        """The state of the latest checkpoint, or the first state of a run that has none."""
        if not trained_steps(self.folder.checkpoints):
            return self.first_state()
        return self.checkpoints(write=False).restore(self.abstract)

    def traced(self) -> Any:
        """The train step, traced for the batches of this run; nothing is allocated, and no data are read
        where their shapes are known without. Raises if a layer cannot do what the config asks of it."""
        batch, whole = self.experiment.batch_shapes(), parallel.batch_sharding(self.mesh)
        batch = {k: x.update(sharding=parallel.shard_of_rows(whole, x.shape)) for k, x in batch.items()}
        with self.placed():
            return self.jitted().trace(self.abstract, batch)

    def compiled(self) -> jax.stages.Compiled:
        """The train step of `traced`, compiled."""
        with self.placed():
            return self.traced().lower().compile(self.compiler_options)

    def jitted(self, step: TrainStep | None = None) -> Any:
        """The train step, by default that of `make_step`, jitted."""
        return jax.jit(step or self.make_step(), donate_argnums=0, out_shardings=(self.shardings, None))

    def make_step(self, **options: Any) -> TrainStep:
        """The train step; `options` as for `make_train_step`."""
        c = self.config.optimizer
        if self.mesh.size > 1 or c.has_rules or c.averages_itself:
            options = step_options(self) | options
        options |= {"clip_norm": c.clip_norm, "ema_decay": c.ema_decay, "seed": self.config.seed}
        microbatches = 1 if self.experiment.whole_batch else self.config.parallel.microbatches
        return make_train_step(self.experiment, self.optimizer, microbatches=microbatches, **options)

    def first_state(self) -> State:
        """The initial state, of a warm start with another run's parameters."""
        state = jit_once(lambda: parallel.unboxed(self.create()), out_shardings=self.shardings)()
        return state if self.warm_start is None else self._warm_started(state, self.warm_start)

    def _warm_started(self, state: State, warm_start: WarmStart) -> State:
        return warm_start.into(state, jit_once(self.optimizer.init, out_shardings=self.shardings.opt_state))

    def evaluators(self, split: str = "validation") -> dict[str, Evaluator]:
        """The experiment's evaluators of a split, by prefixes like "eval", and those of each set in
        `evaluate.sets`, with "wiki" instead of "eval" and "wiki/generate" instead of "generate". For a split
        of another source, "test of SOURCE", there are no further sets."""
        with self.placed():
            evaluators = dict(self.experiment.evaluators(self.put, split))
            if self.config.evaluate.sets and split.isidentifier():
                evaluators |= evaluators_of_sets(self, split)
            return evaluators

    def evaluate(self, params: Params, split: str = "validation") -> dict[str, float]:
        """The results of all evaluators of a split, by names like "eval/loss"."""
        with self.placed():
            return Evaluate(0, self.evaluators(split)).measure(params)

    def _meter(self, skipped: int, started: float, step_gb: Callable[[], float | None]) -> Meter:
        return (self.stages.meter if self.config.train.until else Meter)(
            tokens_per_step=self.config.train.batch_size * self.experiment.tokens_per_example,
            learning_rate=self.schedule,
            watch=Watch(self.config.train, self.folder.metrics),
            skipped=skipped,
            started=started,
            peak_rate=functools.cache(self.peak_rate),
            step_gb=step_gb,
        )

    def peak_rate(self) -> float | None:
        """Tokens/s at the peak FLOP/s of the devices; None where that is not known."""
        peak = peak_flops([*self.mesh.devices.flat], self.experiment.config.model.dtype)
        return peak / run_flops_per_token(self) if peak else None
