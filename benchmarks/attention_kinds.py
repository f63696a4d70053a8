"""Kinds of attention and position encodings under the same training.

    python -m benchmarks.attention_kinds [--folder=runs/attention] [--only=window,alibi] [--seeds 0 1 2]

Trains configs/attention.py, each of its presets, and multi-head attention with every position encoding, one
after another. Prints bits per byte of validation text and, beside multi-head attention, the mean of the
differences seed by seed, each a mean over the seeds with its 95 % confidence interval (Student's t); tokens/s
(median of the logged values) and the memory of a training step by XLA's analysis. Runs in the folder that
have ended are not trained again, and others continue.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import common
from configs import attention

CONFIG = "configs/attention.py"
POSITIONS = ("none", "sinusoidal", "learned", "alibi", "t5", "shaw", "transformer_xl")


def runs() -> dict[str, list[str]]:
    """Name of a row -> flags of its run."""
    kinds = {name: [f"--config={CONFIG}:{name}"] for name in attention.KINDS}
    positions = {
        f"multi_head, {name}": [f"--config={CONFIG}", f"--config.model.position={name}"] for name in POSITIONS
    }
    return {"multi_head": [f"--config={CONFIG}"]} | kinds | positions


def measure(flags: list[str], workdir: Path) -> dict[str, float]:
    """Trains unless the run has ended, and reads its metrics."""
    metrics = workdir / "metrics.jsonl"
    if not metrics.exists() or "eval/bits_per_byte" not in metrics.read_text():
        command = [sys.executable, "launch.py", *flags, f"--workdir={workdir}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]

    def logged(name: str) -> list[float]:
        return [line[name] for line in lines if name in line]

    return {
        "bits per byte": logged("eval/bits_per_byte")[-1],
        "tokens/s": statistics.median(logged("train/tokens_per_second")),
        "step GB": logged("train/step_gb")[-1],
    }


def row(name: str, measured: list[dict[str, float]], base: list[dict[str, float]]) -> dict[str, object]:
    """The row of a kind from its runs, one for each seed, and from those of multi-head attention."""
    bits = [run["bits per byte"] for run in measured]
    differences = [value - other["bits per byte"] for value, other in zip(bits, base, strict=True)]
    return {
        "attention": name,
        "bits per byte": common.mean(bits),
        "difference": "" if measured is base else common.mean(differences, "+"),
        "tokens/s": f"{statistics.median(run['tokens/s'] for run in measured):,.0f}",
        "step GB": f"{measured[0]['step GB']:.2f}",
    }


def main() -> None:
    """Parses flags, trains all runs, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/attention"))
    parser.add_argument("--only", default="", help="comma-separated names of rows, beside multi_head (all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    flags = parser.parse_args()
    known = {name.split(", ")[-1]: name for name in runs()}
    asked = flags.only.split(",") if flags.only else [*known]
    if unknown := [name for name in asked if name not in known]:
        parser.error(f"--only: {','.join(unknown)}; expected {','.join(known)}")
    rows: list[dict[str, object]] = []
    base: list[dict[str, float]] = []  # of multi-head attention, the first of the runs
    for short, name in known.items():
        if not base or short in asked:
            arguments = runs()[name]
            places = {seed: flags.folder / f"{name.replace(', ', '_')}-{seed}" for seed in flags.seeds}
            measured = [
                measure([*arguments, f"--config.seed={seed}"], place) for seed, place in places.items()
            ]
            base = base or measured
            rows.append(row(name, measured, base))
            print(*rows[-1].values(), sep=", ", flush=True)
    print(common.machine(), common.table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
