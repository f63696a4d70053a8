"""A family of sizes with one dial, the depth: the keys of a model, and of its run for a budget of FLOPs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer.errors import UserError

if TYPE_CHECKING:
    from commands.sweeps.jobs import Job

LEAST_STEPS = 20
"""A budget for fewer steps is too small for a size."""

Keys = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Size:
    """A model of the family: its depth and keys, FLOPs of training on a token, and tokens of a step."""

    depth: int
    keys: Keys
    parameters: int
    flops_per_token: float
    tokens_per_step: int

    @property
    def n(self) -> float:
        """The multiplications of a token: the N of `transformer.evaluation.statistics.scaling_law`."""
        return self.flops_per_token / 6

    def steps(self, budget: float) -> int:
        """The steps that a budget of FLOPs pays, rounded."""
        return round(budget / self.flops_per_token / self.tokens_per_step)

    def tokens(self, budget: float) -> int:
        """The tokens of these steps."""
        return self.steps(budget) * self.tokens_per_step

    def planned(self, budget: float, seed: int) -> Keys:
        """The entry in law.json of a run for a budget, before it is trained."""
        return {
            "depth": self.depth,
            "d_model": self.keys["model.d_model"],
            "parameters": self.parameters,
            "budget": budget,
            "seed": seed,
            "steps": self.steps(budget),
            "n": self.n,
            "d": self.tokens(budget),
        }


@dataclasses.dataclass(frozen=True)
class Family:
    """A config file and keys for all sizes. The config is itself the member of its own depth.

    With depth grow, in the proportions of the config, the width (`width` for each layer), the number of heads
    and `d_ff`; the width of a head stays, and the width is rounded up to a multiple of it. Key/value heads
    are the divisor of the number of heads that is nearest to the config's share of them. Adam's learning
    rate is that of the config times (its width / the width)^0.5; Muon's rate for matrices stays, and with
    muP every rate. Warm-up and decay take the config's share of the steps; the batch stays.

    Source: nanochat (Karpathy 2025), where depth is the only dial: a width of 64 for each layer, heads of
    128, and these learning rates.
    """

    config: str
    overrides: tuple[tuple[str, str], ...]
    width: float = 0.0  # 0: as in the config

    def size(self, depth: int) -> Size:
        """The model of a depth.

        Raises:
          UserError: a bad key, or an experiment without these keys.
        """
        import jax

        from workdir.opening import open_without_data, read_to_train

        keys = self.keys(depth)
        overrides = [*self.overrides, *_as_text(keys)]
        run = open_without_data(read_to_train(self.config, overrides), overrides)
        if run.config.train.until:
            raise UserError("--config.train.until: budgets of --mode=scaling are shared by equal steps")
        params = run.abstract.params
        tokens = run.config.train.batch_size * run.experiment.tokens_per_example
        parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        return Size(depth, keys, parameters, run.experiment.flops_per_token(params), tokens)

    def keys(self, depth: int) -> Keys:
        """The keys of a depth, but for those that depend on the steps."""
        values = self.values({})
        model, optimizer = values["model"], values["optimizer"]
        needed = ("num_layers", "d_model", "num_heads", "d_ff")
        if missing := [key for key in needed if key not in model]:
            raise UserError(f"--config: {values['experiment']} has no model.{missing[0]}, which depth sets")
        head = model["d_model"] // model["num_heads"]
        heads = -(-depth * (self.width or model["d_model"] / model["num_layers"]) // head)
        width = int(heads) * head
        keys = {
            "model.num_layers": depth,
            "model.d_model": width,
            "model.num_heads": int(heads),
            "model.d_ff": round(width * model["d_ff"] / model["d_model"]),
        }
        if groups := model.get("num_kv_heads"):
            keys["model.num_kv_heads"] = nearest_divisor(int(heads), heads * groups / model["num_heads"])
        if model.get("parametrization") != "mup":  # which scales the steps with the width by itself
            rate = "adam_learning_rate" if "muon" in optimizer["name"] else "learning_rate"
            adam = optimizer[rate] or optimizer["learning_rate"]
            keys[f"optimizer.{rate}"] = float(f"{adam * (model['d_model'] / width) ** 0.5:.6g}")
        return keys

    def values(self, keys: Keys) -> dict[str, Any]:
        """The checked values of the config with further keys."""
        from commands.sweeps.settings import check_config_to_train
        from transformer.config import to_values

        return to_values(check_config_to_train(self.config, [*self.overrides, *_as_text(keys)]))

    def job(self, workdir: str, size: Size, budget: float, seed: int, flag: str = "--budgets") -> "Job":
        """The run of a size for a budget, which a flag gives.

        Raises:
          UserError: too few steps, or a seed among the keys.
        """
        from commands.sweeps.jobs import Job

        if "seed" in dict(self.overrides):
            raise UserError("--config.seed: --seeds sets it")

        steps, values = size.steps(budget), self.values({})
        if steps < LEAST_STEPS:
            raise UserError(
                f"{flag}: {budget:g} FLOPs are {steps} steps at depth {size.depth}; expected "
                f"{LEAST_STEPS} or more: a larger budget, a smaller depth, or a smaller train.batch_size"
            )
        keys = {**size.keys, "train.steps": steps, "seed": seed}
        for key in ("warmup_steps", "decay_steps"):
            if of_config := values["optimizer"][key]:
                share = of_config / values["train"]["steps"]
                keys[f"optimizer.{key}"] = max(1, round(steps * share))
        folder = Path(workdir) / f"flops={budget:g},depth={size.depth},seed={seed}"
        changes = [*self.overrides, *_as_text(keys)]
        arguments = [f"--workdir={folder}", f"--config={self.config}"]
        arguments += [f"--config.{key}={value}" for key, value in changes]
        return Job(folder.name, folder, arguments, self.values(keys))


def nearest_divisor(number: int, ideal: float) -> int:
    """The divisor of a number whose ratio to what is wanted is the nearest to 1; the smaller of two."""
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return min(divisors, key=lambda divisor: max(divisor / ideal, ideal / divisor))


def _as_text(keys: Keys) -> list[tuple[str, str]]:
    from commands.sweeps.algebra import as_overrides

    return as_overrides(keys)
