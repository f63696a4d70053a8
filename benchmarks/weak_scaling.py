"""A step of one model on more and more GPUs, with as many tokens on each: bytes sent, and the estimated time.

    python -m benchmarks.weak_scaling --config=configs/papers/llama_8b.py --output=docs/weak_scaling.png

Compiles the step for 1, 2, 8, 32, 128 and 512 hosts of eight H100 by `--mode=plan`, on a machine without any,
and draws the bytes that each device sends beside those of the least that full sharding over n devices needs:
(n - 1) / n of the kernels, twice in bfloat16 and once, as gradients, in float32; rows of the embedding table
are looked up where they are. Needs requirements-plan.txt.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from workdir.opening import read_config

HOSTS = (1, 2, 8, 32, 128, 512)


def plan(config: str, hosts: int, rows: int) -> dict[str, Any]:
    """The plan for that many hosts of eight GPUs, with `rows` rows on each GPU."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "plan.json")
        flags = ["--mode=plan", f"--config={config}", f"--topology=h100:{hosts}x8", f"--output={out}"]
        keys = [f"--config.train.batch_size={hosts * 8 * rows}"]
        subprocess.run([sys.executable, "launch.py", *flags, *keys], check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


def draw(plans: list[dict[str, Any]], embedding: int) -> Figure:
    """Bytes sent and the time of a step, over the number of devices; `embedding` is the size of the table."""
    n = np.array([plan["devices"] for plan in plans])
    sent = [sum(row["sent"] for row in plan["schedule"]["moved"]) / 1e9 for plan in plans]
    least = 8 * (plans[0]["parameters"] - embedding) * (n - 1) / n / 1e9
    figure = Figure((9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(n, sent, "o-", label="compiled program")
    left.plot(n, least, "--", color="grey", label="kernels, 2 x bfloat16 + float32")
    left.set(ylabel="GB sent by each device", ylim=(0, 1.15 * max(*sent, *least)))
    left.legend(loc="lower right")
    parts = {"products": "products", "memory": "memory", "waiting for network": "exposed"}
    below = np.zeros(len(n))
    for label, name in parts.items():
        height = np.array([plan["schedule"][name] / plan["efficiency"] * 1e3 for plan in plans])
        right.bar(range(len(n)), height, bottom=below, label=label)
        below += height
    right.set(ylabel="ms of a step, estimated", ylim=(0, 1.3 * max(below)))
    right.set_xticks(range(len(n)), [f"{plan:,}" for plan in n])
    right.legend(ncols=3, fontsize="small", loc="upper center")
    left.set_xscale("log", base=2)
    left.set_xticks(n, [f"{plan:,}" for plan in n])
    for axes in (left, right):
        axes.set_xlabel("H100")
    return figure


def main() -> None:
    """Writes the figure and prints its numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True)
    parser.add_argument("--rows", type=int, default=1, help="rows on each GPU (1)")
    parser.add_argument("--output", required=True, help="a PNG")
    flags = parser.parse_args()
    plans = [plan(flags.config, hosts, flags.rows) for hosts in HOSTS]
    values = read_config(flags.config)
    embedding = values["data"]["vocab_size"] * values["model"]["d_model"]
    draw(plans, embedding).savefig(flags.output, dpi=130)
    for planned in plans:
        sent = sum(row["sent"] for row in planned["schedule"]["moved"])
        time = f"{planned['seconds'] * 1e3:7.1f} ms, MFU {planned['mfu']:.1%}"
        print(f"{planned['devices']:6,} GPUs: {sent / 1e9:6.2f} GB, {time}")


if __name__ == "__main__":
    main()
