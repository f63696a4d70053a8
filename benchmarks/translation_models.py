"""A Transformer and recurrent models, with attention and without, under the same training on Multi30k.

    python -m benchmarks.translation_models [--folder=runs/multi30k] [--data=data/multi30k]
        [--only=additive,none] [--seeds 0 1 2] [--config.train.steps=100 ...]

Trains configs/studies/multi30k with one optimizer, Muon, on the same number of target tokens, a sixth of
those of the Transformer's config, one run after another, and translates the test captions with each run's
own decoding config. Prints their BLEU, the mean over the seeds with its 95 % confidence interval (Student's
t), and that of the validation captions, which keys were chosen on. `--data` is the folder of the files. Runs
that are finished are neither trained nor evaluated again; interrupted ones continue. Further keys,
`--config.KEY=VALUE`, are those of all runs.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common

CONFIGS = "configs/studies/multi30k"
RECURRENT = (f"{CONFIGS}/rnn_multi30k.py", "--config.train.steps=515")
"""Config and flags of the recurrent models: more steps than of the Transformer, to make up for the padding of
their shorter rows."""

SHORT = (
    f"{CONFIGS}/translation_multi30k.py",
    "--config.train.steps=500",
    "--config.model.dropout=0.2",
    "--config.model.dtype=float32",
    "--config.generate.length_penalty=0.6",
)
"""Config and flags of the Transformer: as many target tokens as the recurrent models read, with the dropout
that is best for so few, and computed and decoded as they are."""

MODELS = {
    "none": ("GRU, no attention", [*RECURRENT, "--config.model.attention=none"]),
    "additive": ("GRU, additive attention", [*RECURRENT]),
    "transformer": ("Transformer", [*SHORT]),
}
"""Name of a model in names of folders -> its name in the table, config and flags."""

SPLITS = {"test": "test_2016_flickr", "validation": "val"}


def launch(*flags: str) -> None:
    """Runs `launch.py`."""
    subprocess.run([sys.executable, "launch.py", *flags], check=True, stdout=subprocess.DEVNULL)


def pairs(data: str, name: str) -> str:
    """The source of the pairs of a split."""
    return f"aligned:{data}/{name}.en.gz,{data}/{name}.de.gz"


def train(name: str, seed: int, workdir: Path, data: str, keys: Sequence[str]) -> None:
    """Trains a model, unless the run is finished."""
    if (workdir / "config.json").exists() and (workdir / "checkpoints" / str(steps(workdir))).is_dir():
        return
    config, *flags = MODELS[name][1]
    sources = (
        f"--config.data.source={pairs(data, 'train')}",
        f"--config.data.validation_source={pairs(data, 'val')}",
    )
    launch(f"--config={config}", *flags, *sources, f"--config.seed={seed}", *keys, f"--workdir={workdir}")


def steps(workdir: Path) -> int:
    """The number of updates that a run is to make."""
    return json.loads((workdir / "config.json").read_text())["train"]["steps"]


def bleu(workdir: Path, source: str) -> float:
    """BLEU of a run's translations of `source`, from its evaluation.json; if it lacks it, it is evaluated."""
    evaluations, last = workdir / "evaluation.json", steps(workdir)

    def found() -> list[float]:
        there = json.loads(evaluations.read_text()) if evaluations.exists() else []
        these = [entry for entry in there if entry["source"] == source and max(entry["steps"]) == last]
        return [entry["results"]["generate/bleu"] for entry in these]

    if not found():
        launch(f"--workdir={workdir}", "--mode=evaluate", f"--input={source}")
    return found()[-1]


def sizes(workdir: Path) -> Mapping[str, float]:
    """The parameters of a run and the target tokens that it was trained on, in millions."""
    import jax
    import numpy as np

    from workdir.opening import reopen_run

    run: Any = reopen_run(workdir)
    rows, config = run.loader.rows, run.config.train
    # In every epoch all pairs are packed again into as many rows.
    tokens = rows.batch(np.arange(len(rows)))["weights"].sum() / len(rows) * config.steps * config.batch_size
    parameters = sum(leaf.size for leaf in jax.tree.leaves(run.abstract.params))
    return {"parameters": parameters / 1e6, "tokens": float(tokens) / 1e6}


def row(name: str, workdirs: Sequence[Path], data: str) -> dict[str, object]:
    """The row of a model from its runs, one for each seed."""
    of_run = sizes(workdirs[0])
    cells: dict[str, object] = {"model": MODELS[name][0], "runs": len(workdirs)}
    cells |= {f"{key}, millions": f"{value:.2f}" for key, value in of_run.items()}
    for split, file in SPLITS.items():
        scores = [bleu(workdir, pairs(data, file)) for workdir in workdirs]
        cells[f"BLEU, {split}"] = common.mean(scores, digits=2)
    return cells


def main() -> None:
    """Parses flags, trains and evaluates what is missing, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--data", default="data/multi30k")
    parser.add_argument("--only", default="", help=f"of {','.join(MODELS)}, comma-separated (all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    flags, keys = parser.parse_known_args()
    if unknown := [key for key in keys if not key.startswith("--config.")]:
        parser.error(f"unknown: {' '.join(unknown)}")
    names = flags.only.split(",") if flags.only else [*MODELS]
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--only: {','.join(unknown)}; expected {','.join(MODELS)}")
    rows: list[dict[str, object]] = []
    for name in names:
        workdirs = [flags.folder / f"{name}-{seed}" for seed in flags.seeds]
        for seed, workdir in zip(flags.seeds, workdirs, strict=True):
            train(name, seed, workdir, flags.data, keys)
        rows.append(row(name, workdirs, flags.data))
        print(*rows[-1].values(), sep=", ", flush=True)
    print(common.machine(), common.table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
