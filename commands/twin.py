"""Trains a model here and the same one of transformers on PyTorch, side by side, and compares their losses.

python launch.py --mode=twin --config=configs/lm.py --peer=gpt2 --config.model.position=learned ...

Both start with the same weights (through the rules of --mode=export), and take the same batches, AdamW with
the same arguments, clipping and rates. Prints both losses of each step, and the largest difference; the exit
code is 1 if that is more than --within. Needs `pip install '.[peers]'`. The config must be one that the
family can express, in float32 and without dropout. It reads the data that the config names.
"""

import argparse
import dataclasses
import importlib.util
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import NO_CONFIG, place
from transformer.errors import UserError

if TYPE_CHECKING:
    from transformer.training.run import Run
    from workdir.opening import Overrides

DROPOUTS = ("dropout", "embedding_dropout", "attention_dropout")
ARGUMENTS = {"b1", "b2", "eps"}
"""Arguments of AdamW that both have."""

PRINTED_STEPS = 20
"""The steps that are printed, about."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(missing=NO_CONFIG, suffix="twin", alone=True)
    parser.add_argument(
        "--config", type=place, default="", help="a config file, configs/lm.py, or a preset of it"
    )
    parser.add_argument("--peer", default="", help="the family: gpt2, bert, marian ...; by default the first")
    parser.add_argument("--steps", type=int, default=200, help="training steps, at most train.steps (200)")
    parser.add_argument("--within", type=float, default=1e-4, help="the largest difference of losses (1e-4)")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints both losses; returns 0, or 1 if they differ by more than --within."""
    if not flags.config:
        raise UserError(f"{NO_CONFIG} (--mode=twin)")
    if flags.steps < 1:
        raise UserError(f"--steps: {flags.steps}; expected 1 or more")
    for library in ("torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise UserError(f"--mode=twin: {library} is not installed; pip install '.[peers]'")
    with tempfile.TemporaryDirectory() as place:
        opened = _open(flags, overrides, Path(place) / "run")
        steps = min(flags.steps, opened.config.train.steps)
        largest = at = 0.0
        print(f"{'step':>6} {'here':>12} {'transformers':>12} {'difference':>11}")
        for step, (ours, theirs) in enumerate(losses(opened, flags.peer, steps, Path(place)), 1):
            difference = abs(ours - theirs)
            if not (difference <= largest or math.isnan(largest)):
                largest, at = difference, step
            if step == 1 or step % max(1, steps // PRINTED_STEPS) == 0 or step == steps:
                print(f"{step:6} {ours:12.6f} {theirs:12.6f} {difference:11.1e}", flush=True)
    close = largest <= flags.within
    result = f"largest difference in {steps} steps: {largest:.1e}, at step {at:g}"
    print(result if close else f"{result}: more than {flags.within:g}")
    return 0 if close else 1


def _open(flags: argparse.Namespace, overrides: "Overrides", place: Path) -> "Run":
    """The run of the config, checked."""
    from commands.sweeps.settings import check_config_to_train
    from transformer.interop.hub_folder import family_for
    from transformer.run_folder import RunFolder
    from workdir.opening import open_run

    config = check_config_to_train(flags.config, overrides)
    check_plain(config)
    family, _ = family_for(config, flags.peer)
    if config.experiment != family.experiment:
        raise UserError(
            f"config.experiment: {config.experiment!r}; --mode=twin expects {family.experiment!r}"
        )
    opened = open_run(RunFolder(place), config)
    opened.prepare()
    return opened


def check_plain(config: Any) -> None:
    """Raises `UserError` for keys of a `RunConfig` that a plain loop of PyTorch does not have."""
    from transformer.training.losses.logits_memory import LogitsConfig

    model, c = config.model, config.optimizer
    wrong: dict[str, tuple[Any, Any]] = {f"model.{key}": (vars(model).get(key, 0), 0) for key in DROPOUTS}
    wrong |= {"model.dtype": (model.dtype, "float32"), "train.until": (dict(config.train.until), {})}
    wrong |= {"optimizer.name": (c.name, "adamw"), "model.lora_rank": (model.lora_rank, 0)}
    wrong |= {f"optimizer.{key}": (getattr(c, key), _default(c, key)) for key in
              ("rules", "frozen_layers", "train_only", "layer_decay", "embedding_weight_decay")}  # fmt: skip
    loss = vars(config).get("loss")
    if dataclasses.is_dataclass(loss):
        fits = {field.name for field in dataclasses.fields(LogitsConfig)}
        chosen = [field.name for field in dataclasses.fields(loss) if field.name not in fits]
        wrong |= {f"loss.{key}": (getattr(loss, key), _default(loss, key)) for key in chosen}
    for key, (value, expected) in wrong.items():
        if value != expected:
            raise UserError(f"config.{key}: {value!r}; --mode=twin expects {expected!r}")
    if unknown := c.arguments.keys() - ARGUMENTS:
        known = ", ".join(sorted(ARGUMENTS))
        raise UserError(f"config.optimizer.arguments.{min(unknown)}: --mode=twin knows {known}")


def losses(opened: "Run", peer: str, steps: int, place: Path) -> Iterator[tuple[float, float]]:
    """The losses of each step, here and there."""
    import jax
    import numpy as np

    from commands.export import write_model
    from commands.support.twin_peer import Peer, apart

    with opened.placed():
        state = opened.first_state()
        (place / "model").mkdir()
        family, by_name = write_model(opened, jax.tree.map(np.asarray, state.params), place / "model", peer)
        theirs = Peer(place / "model", family, by_name.values(), opened.config.optimizer)
        step: Any = opened.jitted()
        for number, batch in zip(range(steps), opened.loader.iterate(0), strict=False):
            if terms := {*opened.experiment.weigh(batch)} - {"loss"}:
                raise UserError(
                    f"--mode=twin: the run also has the term {min(terms)}; expected the loss alone"
                )
            expected = theirs.step(apart(batch), float(opened.schedule(number)))
            state, metrics = step(state, opened.put(batch))
            yield float(metrics["loss"].mean), expected


def _default(config: Any, key: str) -> Any:
    field = config.__dataclass_fields__[key]
    return field.default_factory() if field.default is dataclasses.MISSING else field.default
