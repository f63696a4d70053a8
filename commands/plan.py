"""The plan of a train step on hardware that is not there: memory, time, network, cost.

python launch.py --mode=plan --config=configs/papers/llama_8b.py --topology=v5p:4x4x4
python launch.py --mode=plan --config=configs/papers/gpt2.py:xl --topology=h100:1x8 --price=2.5 --search

Compiles the step as training does, for h100:HOSTSxGPUS (h200, b200, gb200), v5e:16x16, v5p:4x4x4,
v6e:8x8 or tpu7x:4x4x4, or without --topology for the devices of this machine. Times are estimates from
the compiled program, at a share of the data sheet's rates: for GPUs the one that was measured on an H200,
for TPUs an assumption (docs/scaling.md). The exit code is 1 if it does not fit.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import place
from transformer.errors import UserError
from workdir.outputs import check_file

if TYPE_CHECKING:
    from transformer.planning.plan import Plan
    from transformer.training.run import Run
    from workdir.opening import Overrides


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(missing="--config or --workdir is required, such as --config=configs/lm.py")
    add = parser.add_argument
    add("--config", type=place, default="", help="a config file; without one, the config of --workdir")
    add("--topology", default="", help="h100:8x8 (hosts x GPUs), v5p:4x4x4, ... (this machine's devices)")
    add("--slices", type=int, default=1, help="slices of TPUs, joined by the data-centre network (1)")
    add("--price", type=float, default=0.0, help="the price of a device for an hour, for the cost of tokens")
    add("--efficiency", type=share, help="the share of the data sheet's rates to assume (that of the chip)")
    add("--search", action="store_true", help="try meshes, remat, microbatches and vocab_parts")
    add("--compile", type=int, default=6, help="with --search: how many of the best to compile (6)")
    add("--parameters", action="store_true", help="how each parameter is divided over the mesh")
    add("--output", type=place, help="a file for the plan as JSON")


def share(value: str) -> float:
    """The type of --efficiency."""
    number = float(value)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{value}; expected a share above 0, at most 1")
    return number


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints the plan, or the ranking of a search."""
    from transformer.planning import hardware
    from transformer.planning.plan import TooLarge, lines, make_plan
    from transformer.training.partition import table

    check(flags)
    overrides = [*overrides]
    if flags.topology:
        hardware.prepare(flags.topology)
    planned = opener(flags)
    if flags.search:
        return search(flags, planned, overrides)
    try:
        plan = make_plan(planned(overrides), flags.efficiency)
    except TooLarge as error:
        print(f"does not fit: {error} of memory on each device")
        return 1
    for line in lines(plan, flags.price):
        print(line)
    if flags.parameters:
        print("", *table(planned(overrides).abstract.params), sep="\n")
    write(flags, plan)
    return 0 if plan.fits else 1


def check(flags: argparse.Namespace) -> None:
    """Raises `UserError` for a flag that cannot be, before anything is compiled."""
    for name, value, least in (
        ("slices", flags.slices, 1),
        ("compile", flags.compile, 1),
        ("price", flags.price, 0),
    ):
        if not least <= value < math.inf:
            raise UserError(f"--{name}: {value}; expected {least} or more")
    if flags.slices > 1 and not flags.topology.startswith(("v", "tpu")):
        raise UserError(f"--slices: {flags.slices}; only TPUs are in slices: --topology=v5e:16x16")
    check_file("--output", flags.output)


def opener(flags: argparse.Namespace) -> "Callable[[Overrides], Run]":
    """The function from config keys to the run to plan, on devices that are described once."""
    from transformer.planning import hardware
    from workdir.folder import stored_config, stored_data
    from workdir.opening import named, open_without_data, read_to_train

    devices = hardware.described(flags.topology, flags.slices) if flags.topology else None
    folder = None if flags.config else named(flags.workdir)
    config = flags.config if folder is None else stored_config(folder)
    stored = {} if folder is None else stored_data(folder)

    def planned(overrides: "Overrides") -> "Run":
        return open_without_data(read_to_train(config, overrides, folder), overrides, stored, devices)

    return planned


def search(flags: argparse.Namespace, planned: "Callable[[Overrides], Run]", overrides: "Overrides") -> int:
    """Prints the best candidates as they are compiled, and the flags of the fastest."""
    from transformer.planning.search import ranking

    print(f"{'ms':>8} {'MFU':>6} {'GB':>7} {'GB sent':>8}  keys", flush=True)
    best: Any = None
    for candidate, plan, why in ranking(planned, [*overrides], flags.compile, flags.efficiency):
        if plan is None:
            print(f"{why:>32}  {candidate.flags}", flush=True)
            continue
        sent = sum(row.sent for row in plan.schedule.moved) / 1e9
        figures = f"{plan.seconds * 1e3:8.1f} {plan.mfu:6.1%} {plan.memory.total / 1e9:7.2f} {sent:8.2f}"
        print(f"{figures}  {candidate.flags}" + ("" if plan.fits else "  (does not fit)"), flush=True)
        if plan.fits and (best is None or plan.seconds < best[1].seconds):
            best = candidate, plan
    if best is None:
        print("nothing fits")
        return 1
    print(f"\nfastest: {best[0].flags}")
    write(flags, best[1])
    return 0


def write(flags: argparse.Namespace, plan: "Plan") -> None:
    """Writes the plan to --output as JSON."""
    if flags.output:
        Path(flags.output).write_text(json.dumps(plan.values(flags.price), indent=2) + "\n")
