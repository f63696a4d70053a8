"""Kinds of attention and position encodings under the same training.

    python -m benchmarks.attention_kinds [--folder=runs/attention] [--only=window,alibi]

Trains configs/attention.py, each of its presets, and multi-head attention with every position encoding, one
after another. Prints bits per byte of validation text, tokens/s (median of the logged values) and peak memory
of the process. Runs that are already in the folder are not trained again.
"""

import argparse
import json
import os
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


def measure(flags: list[str], workdir: Path) -> dict[str, str]:
    """Trains unless the run exists, and reads its metrics."""
    kept = workdir / "memory_gb"
    if not kept.exists():
        command = [sys.executable, "launch.py", *flags, f"--workdir={workdir}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)}: ended with status {status}")
        kept.write_text(f"{usage.ru_maxrss / 2**20:.2f}")
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["train/tokens_per_second"] for line in lines if "train/tokens_per_second" in line]
    bits = [line["eval/bits_per_byte"] for line in lines if "eval/bits_per_byte" in line]
    return {
        "bits per byte": f"{bits[-1]:.3f}",
        "tokens/s": f"{statistics.median(speeds):,.0f}",
        "memory GB": kept.read_text(),
    }


def main() -> None:
    """Parses flags, trains all runs, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/attention"))
    parser.add_argument("--only", default="", help="comma-separated names of rows (all)")
    flags = parser.parse_args()
    asked = [name for name in flags.only.split(",") if name]
    rows: list[dict[str, object]] = []
    for name, arguments in runs().items():
        if not asked or name.split(", ")[-1] in asked:
            measured = measure(arguments, flags.folder / name.replace(", ", "_"))
            rows.append({"attention": name} | measured)
            print(name, *measured.values(), flush=True)
    print(common.machine(), common.table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
