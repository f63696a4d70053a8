"""Maximal update parametrisation (muP): initial values and learning rates by the logical axes of parameters.

A kernel with fan-in n and fan-out m has grown by n' and m' from the base width (`model.growth`): by the sizes
of those of its axes that grow. Relative to the standard parametrisation, whose initial variance is 1 / n,

    initial standard deviation   min(1, sqrt(m' / n')): less for what does not grow, logits and routers
    step of Adam and the like    1 / n'
    step of gradient descent     m' / n'
    step of Muon                 sqrt(m' / n'), relative to Muon's own factor by shape

All other parameters are vectors, or tables in which tokens are looked up: n' = 1. So what each layer
computes, and what each step changes of it, has the same scale at every width. In a stack that is deeper than
`base_layers` by a factor l, a block's output is scaled by l^-a with a the `depth_exponent`: its last kernels
and biases have this in their initial value and step, and every step in a block is scaled by l^(a - 1).

Two factors are in the model: tied logits are divided by the growth of the width, and attention scores are
divided by k instead of sqrt(k) as heads get wider.

Sources: Yang et al. 2022, "Tensor programs V", tables 3 and 8 and appendix B; Yang, Simon and Bernstein 2023,
"A spectral condition for feature learning", condition 1; Yang et al. 2023, "Tensor programs VI", table 1
(a = 0.5); Dey et al. 2025, "Don't be lazy: CompleteP", table 1 (a = 1).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

from transformer.errors import UserError
from transformer.training.experiment import Params
from transformer.training.optim.roles import BATCHES, role, roles_of
from transformer.training.optim.rules import parameter_settings
from transformer.training.parallel import is_boxed, path_names, unboxed

ADAM_LIKE: tuple[str, ...] = ("adabelief", "adam", "adamax", "adamaxw", "adamw", "amsgrad")
ADAM_LIKE += ("lion", "nadam", "nadamw", "rmsprop", "sign_sgd")
"""Optimizers whose steps have the size of the learning rate, however large gradients are."""

KINDS = dict.fromkeys(ADAM_LIKE, "adam") | {"sgd": "sgd", "contrib.muon": "muon"}
"""Optimizer -> the kind of its steps."""

Axes = Sequence[tuple[str | None, int]]
"""Logical axes with their sizes."""


@dataclasses.dataclass(frozen=True)
class Scales:
    """The factors of a parameter's initial value and of its steps."""

    initial: float
    step: float


def split_axes(names: Sequence[str | None], shape: Sequence[int]) -> tuple[Axes, Axes]:
    """The axes of a parameter's inputs, which only matrices have, and of its outputs, without `BATCHES`."""
    inputs = role(names).rows
    outputs = [i for i, name in enumerate(names) if i not in inputs and name not in BATCHES]
    return [(names[i], shape[i]) for i in inputs], [(names[i], shape[i]) for i in outputs]


def scales(path: tuple, box: Any, model: Any, kind: str, rms: bool = False) -> Scales:
    """The factors of a parameter, boxed with its logical axes, for a kind of `KINDS` and the config of a
    model (see `StackConfig`); `rms` if Muon has `consistent_rms`."""
    inputs, outputs = split_axes(box.names, box.value.shape)
    inside, outside = growth_of(inputs, model), growth_of(outputs, model)
    initial = min(1.0, math.sqrt(outside / inside)) if inputs else 1.0
    step = {"adam": 1 / inside, "sgd": outside / inside, "muon": math.sqrt(outside / inside)}[kind]
    if kind == "muon":
        n, m = (math.prod(size for _, size in axes) for axes in (inputs, outputs))
        step *= muon_factor(n / inside, m / outside, rms) / muon_factor(n, m, rms)
    added = "value_embedding" in path_names(path)  # which `scale_embeddings` does not multiply
    if dict(outputs).keys() >= {"vocab", "embed"} and model.scale_embeddings and not added:
        # The table has the initial variance 1 / d and is multiplied by sqrt(d), as should its steps be.
        step *= outside ** {"adam": -0.5, "sgd": -1.0}[kind]
    if "layers" in box.names:
        step *= model.depth ** (model.depth_exponent - 1)
        if [name for name, _ in outputs] == ["embed"]:
            # Its standard initial variance is divided by the number of blocks already.
            initial *= model.depth ** (0.5 - model.depth_exponent)
            step *= model.depth**-model.depth_exponent
    return Scales(initial, step)


def growth_of(axes: Axes, model: Any) -> float:
    """The growth of the number of elements; a norm over the width of the model grows as this does, another
    one as a head."""
    growth = {"norm": model.growth["head_dim"], **model.growth}
    if ("norm", model.d_model) in axes:
        growth["norm"] = growth["embed"]
    return math.prod(growth.get(name, 1.0) for name, _ in axes)


def muon_factor(n: float, m: float, rms: bool) -> float:
    """The factor by which optax multiplies Muon's orthogonal update of a kernel from n to m, but for
    `consistent_rms` itself."""
    return math.sqrt(max(n, m)) if rms else math.sqrt(max(1.0, m / n))


def check_parametrization(config: Any) -> None:
    """Raises `UserError` for keys of a `RunConfig` for which muP is not defined."""
    if config.initialize_std:
        raise UserError(
            f"config.initialize_std: {config.initialize_std} with model.parametrization 'mup', which scales "
            f"the initial values of layers; expected 0"
        )
    c, rules = config.optimizer, enumerate(config.optimizer.rules)
    optimizers = [("name", c.name), *((f"rules[{i}].optimizer", rule.optimizer) for i, rule in rules)]
    for key, name in optimizers:
        if name is not None and name not in KINDS:
            raise UserError(
                f"config.optimizer.{key}: {name!r} with model.parametrization 'mup', which knows "
                f"the steps of {', '.join(KINDS)}"
            )
    if c.arguments.get("adaptive") and KINDS[c.name] == "muon":
        raise UserError(
            "config.optimizer.arguments.adaptive: the size of steps is not known, as muP needs it"
        )
    if config.model.base_layers and "sgd" in (name for _, name in optimizers):
        raise UserError(
            f"config.model.base_layers: {config.model.base_layers} with sgd; scaling with depth is "
            "defined for Adam and Muon; expected 0"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Parametrization:
    """muP of a run: `init` makes its initial parameters, boxed, in the standard parametrisation; `config` is
    its `RunConfig`; `layers` as for `rules.parameter_settings`.

    Raises:
      UserError: keys for which muP is not defined.
    """

    init: Callable[[jax.Array], Any]
    config: Any
    layers: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_parametrization(self.config)

    def initial(self, rng: jax.Array) -> Any:
        """The initial parameters of muP."""
        params = self.init(rng)
        return jax.tree.map(
            lambda box, s: box if s.initial == 1 else box.replace_boxed(box.unbox() * s.initial),
            params,
            self.scales,
            is_leaf=is_boxed,
        )

    def scaled(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer with scaled steps, but with weight decay as it is: p <- p - rate weight_decay p."""

        def update(updates: Params, state: Any, params: Params, **step: Any) -> tuple[Params, Any]:
            # These optimizers need parameters only for their decay, which is scaled as the step.
            decayed = jax.tree.map(lambda p, s: p if s.step == 1 else p / s.step, params, self.scales)
            changes, state = optimizer.update(updates, state, decayed, **step)
            return jax.tree.map(lambda u, s: u if s.step == 1 else u * s.step, changes, self.scales), state

        return optax.GradientTransformationExtraArgs(optimizer.init, update)

    @functools.cached_property
    def scales(self) -> Any:
        """The tree of parameters with `Scales` in place of each."""
        boxed = jax.eval_shape(self.init, jax.eval_shape(jax.random.key, 0))
        c = self.config.optimizer
        settings = parameter_settings(unboxed(boxed), c, self.layers, roles_of(lambda: boxed))

        def of(path: tuple, box: Any, setting: Any) -> Scales:
            if not is_boxed(box):
                raise UserError(f"{'/'.join(path_names(path))}: it has no logical axes, as muP needs them")
            kind = KINDS[setting.rule.optimizer if setting.rule else c.name]
            if kind == "muon" and not role(box.names).is_hidden:
                kind = "adam"
            arguments = setting.rule.arguments if setting.rule else c.arguments
            return scales(path, box, self.config.model, kind, bool(arguments.get("consistent_rms")))

        return jax.tree_util.tree_map_with_path(of, boxed, settings, is_leaf=is_boxed)
