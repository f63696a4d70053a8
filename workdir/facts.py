"""The facts in the report of a run that are not in its folder, and the writing of the report."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from transformer.config import to_values
from transformer.config_help import Key, describe_keys
from transformer.run_folder import RunFolder
from transformer.training.run import Run
from transformer.visualization.run_page import Facts, write_page
from workdir.folder import steps_of
from workdir.provenance import command, read_starts


def write(run: Run, folder: RunFolder, lines: Iterable[str], path: Path) -> Path:
    """Writes the report to a file; `lines` are results that are not in the metrics.

    Raises:
      UserError: there are no metrics, or a file of the folder is damaged.
    """
    return write_page(folder, facts(run, folder, lines), path)


def facts(run: Run, folder: RunFolder, lines: Iterable[str] = ()) -> Facts:
    """The facts in the report of a run that are not in the files of its folder."""
    config: Any = run.config
    size = sum(leaf.size for leaf in jax.tree.leaves(run.abstract.params))
    tokens = config.train.steps * config.train.batch_size * run.experiment.tokens_per_example
    experiment = config.experiment.replace("_", " ")
    again = (
        "import json; from workdir import train; "
        f"train(json.load(open({_quoted(folder.config)})), {_quoted(f'{folder.path}-again')})"
    )
    return Facts(
        name=folder.path.resolve().name,
        lead=f"{experiment}: {size:,} parameters, {steps_of(folder):,} of {config.train.steps:,} "
        f"steps of {config.train.batch_size:,} rows, {tokens:,} tokens in all",
        changed=[
            (key.name, value, key.default, key.meaning)
            for key, value in keys_of(config)
            if value != key.default and key.name != "experiment"
        ],
        lines=[line for line in lines if line],
        starts=read_starts(folder),
        again=shlex.join(["python", "-c", again]),
        next=_next(run, folder),
    )


def keys_of(config: Any) -> Iterator[tuple[Key, Any]]:
    """Each key of a config, and its value as in JSON."""
    values = to_values(config)
    for key in describe_keys(type(config)):  # type: ignore[arg-type]
        value: Any = values
        for part in key.name.split("."):
            value = value[part]
        yield key, value


def _quoted(path: str | Path) -> str:
    """A string of Python, in the quotes that a shell need not escape."""
    return json.dumps(str(path))


def _next(run: Run, folder: RunFolder) -> Mapping[str, str]:
    commands = {"Measure it": command(folder, "--mode=evaluate")}
    experiment: Any = run.experiment
    try:
        commands["Use it"] = command(folder, f"--mode={experiment.example_mode}", *experiment.example_flags())
    except Exception:
        return commands  # the example needs data that are gone
    return commands
