"""Do hyper-parameters carry over to other widths? Trains a few steps at several, and names layers that drift.

python launch.py --mode=coordinates --config=configs/lm.py --widths=64,128,256
python launch.py --mode=coordinates --config=configs/lm.py --config.model.parametrization=mup \
    --config.model.base_width=64 --config.model.base_head_dim=16

The coordinate check: the size of each layer's output, and what a few steps change of it, should not depend
on the width. Prints the power of the width that each grows with, and draws them. The rest of the model
grows as `model.base_width` says. The exit code is 1 if a layer drifts.
"""

import argparse
import copy
import dataclasses
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import NO_CONFIG, place
from transformer.errors import UserError
from workdir.outputs import check_picture

if TYPE_CHECKING:
    from transformer.evaluation.statistics.width_powers import Coordinates
    from transformer.training.run import Run
    from workdir.opening import Overrides

AT_ONCE: dict[str, dict[str, Any]] = {
    "model": {"scan_layers": False, "remat": "none", "vocab_multiple": 1},
    "loss": {"chunk_size": 0, "vocab_parts": 1},
    "optimizer": {"schedule": "constant", "warmup_steps": 0, "decay_steps": 0},
}
"""Keys, where a config has them, with which layers can be seen and the first step is a whole one."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(missing=NO_CONFIG, suffix="coordinates", alone=True)
    add = parser.add_argument
    add(
        "--config",
        type=place,
        default="",
        help="a config file, configs/lm.py, or a preset of it, configs/lm.py:tiny",
    )
    add("--widths", type=widths, default="64,128,256,512", help="values of model.d_model (64,128,256,512)")
    add("--steps", type=int, default=4, help="training steps at each width (4)")
    add("--seeds", type=int, default=3, help="initialisations at each width (3)")
    add("--bound", type=float, default=0.25, help="the power of the width from which a layer drifts (0.25)")
    add("--output", type=place, help="a file for the picture (coordinates.png in --workdir)")


def widths(value: str) -> list[int]:
    """The type of --widths."""
    numbers = sorted({int(part) for part in value.split(",") if part.strip().isdecimal()})
    if len(numbers) < 2 or len(numbers) != len(value.split(",")) or numbers[0] < 1:
        raise argparse.ArgumentTypeError(f"{value!r}; expected two or more widths, 64,128,256")
    return numbers


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints the powers of each layer and draws them. Returns 0, or 1 if a layer drifts."""
    from transformer.evaluation.statistics.width_powers import coordinates
    from transformer.visualization.coordinate_plot import draw_coordinates
    from workdir.opening import read_config

    check(flags)
    values = read_config(flags.config, overrides)
    runs = open_widths(values, flags.widths, flags.steps)
    sizes = coordinates(
        {width: activations(prepared, flags.steps, flags.seeds) for width, prepared in runs.items()}
    )
    drifting = [*sizes.drifting(flags.bound)]
    print_table(sizes, {name for name, *_ in drifting})
    path = Path(flags.output or Path(flags.workdir) / "coordinates.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_coordinates(sizes, [name for name, *_ in drifting], path)
    print(f"{path}: sizes over the width")
    if not drifting:
        print(f"no layer drifts: none grows, or falls to nothing, by a power beyond {flags.bound:g}")
        return 0
    (name, quantity, slope), *more = drifting
    after = f"; after it {len(more)} more" if more else ""
    how = f"grows as width^{slope:.2f}" if math.isfinite(slope) else "is not finite"
    print(f"{name} drifts: its {quantity} {how}{after}")
    return 1


def check(flags: argparse.Namespace) -> None:
    """Raises `UserError` for a flag that cannot be."""
    if not flags.config:
        raise UserError(f"{NO_CONFIG} (--mode=coordinates)")
    for name, value in (("steps", flags.steps), ("seeds", flags.seeds)):
        if value < 1:
            raise UserError(f"--{name}: {value}; expected 1 or more")
    if not flags.bound > 0:
        raise UserError(f"--bound: {flags.bound}; expected more than 0")
    check_picture("--output", flags.output)


def open_widths(values: dict[str, Any], widths: list[int], steps: int) -> dict[int, "Run"]:
    """The run at each width.

    Raises:
      UserError: a model without a width, or one that cannot be so wide.
    """
    from experiments import find_experiment
    from transformer.config import to_values
    from transformer.models.decoder_config import StackConfig
    from transformer.models.transforms.mup import widened
    from transformer.training.run import Run
    from workdir.opening import check_config

    config = check_config(copy.deepcopy(values))
    if not isinstance(config.model, StackConfig):
        raise UserError(f"--mode=coordinates: a model of {config.experiment} has no width that is scaled")
    values = to_values(config)
    for group, keys in AT_ONCE.items():
        if group in values:
            values[group] |= {key: value for key, value in keys.items() if key in values[group]}
    values["train"] |= {"steps": steps, "checkpoint_every": 0}
    runs: dict[int, Run] = {}
    stored: dict[str, Any] = {}
    for width in widths:
        try:
            model = values["model"] | widened(values["model"], width)
            config = check_config(copy.deepcopy(values | {"model": model}))
        except UserError as error:
            raise UserError(f"--widths: {width}: {error}") from None
        experiment = find_experiment(config.experiment)(config, **stored)
        stored = experiment.data.kept()
        runs[width] = Run(experiment, config, "")
    return runs


def activations(run: "Run", steps: int, seeds: int) -> list[list[dict[str, Any]]]:
    """[[the activations of the first batch after each step] for each seed], from initialisation on."""
    import jax

    from transformer.devices import on_host
    from transformer.evaluation.statistics.width_powers import record
    from transformer.layers.block import Block
    from transformer.training.parallel import unboxed

    by_seed, rng = [], jax.random.key(0)
    names: dict[str, None] = {}

    def recorded(params: Any) -> list[Any]:
        seen = record(run.experiment.loss, Block, params, batches[0], rng, False)
        names.update(dict.fromkeys(seen))  # a dictionary would come back from `jit` without its order
        return [*seen.values()]

    with run.placed():
        batches = [run.put(values) for values in itertools.islice(run.loader.iterate(0), steps)]
        step = run.compiled()
        look = jax.jit(recorded)
        for seed in range(run.config.seed, run.config.seed + seeds):
            own = dataclasses.replace(run, config=dataclasses.replace(run.config, seed=seed))
            state = jax.jit(lambda own=own: unboxed(own.create()), out_shardings=run.shardings)()
            seen = [look(state.params)]
            for batch in batches:
                state, _ = step(state, batch)
                seen.append(look(state.params))
            by_seed.append([dict(zip(names, map(on_host, values), strict=True)) for values in seen])
    return by_seed


def print_table(coordinates: "Coordinates", drifting: set[str]) -> None:
    """Prints the powers of each layer's size before and after training, and of its change after each step,
    with half of their intervals."""
    _, seeds, steps = next(iter(coordinates.size.values())).shape
    columns = ["size at 0", f"at {steps - 1}", *(f"change {step}" for step in range(1, steps))]
    width = max(map(len, [*coordinates.size, "power of the width"]))
    print(f"{'power of the width':{width}}", *(f"{text:>12}" for text in columns))
    for name, sizes in coordinates.size.items():
        changes = coordinates.change[name]
        powers, margins = (
            [of(sizes)[0], of(sizes)[-1], *of(changes)[1:]]
            for of in (coordinates.slopes, coordinates.margins)
        )
        mark = "  drifts" if name in drifting else ""
        print(f"{name:{width}}", *(f"{shown(*text):>12}" for text in zip(powers, margins, strict=True)), mark)
    unknown = "of one seed no interval is known: --seeds=3"
    print(f"± half of the 95 % interval over {seeds} seeds" if seeds > 1 else unknown)


def shown(power: float, margin: float) -> str:
    """A power with half of its interval, if that is finite."""
    return f"{power:.2f}" + (f" ±{margin:.2f}" if math.isfinite(margin) else "")
