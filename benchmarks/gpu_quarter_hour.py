"""Everything that a lent GPU should tell, in at most twelve minutes and in the order of worth.

    python -m benchmarks.gpu_quarter_hour --out=FILE [--minutes=12] [--cases gpt2 packed ...] [--tiny]

Each case is a process with a deadline. It starts its contestants, which compile one after another, and lets
them take turns: each turn is a block of consecutive steps of at least 1.5 s that waits for the device only at
its end. Each figure is appended to FILE as a line of JSON, on disk before the next block starts, with the
clock, power and temperature of the GPU. When the time is over, what has not started is left out by name. The
last lines are a table: tokens/s of the median block, MFU by the data sheet, and over the rounds the median
ratio of the first contestant to each that computes as many tokens. A loss that is not finite, or that does
not start near log(vocabulary), ends its contestant.

`--tiny` rehearses all of it with small models, on any machine. `--cases` names some:
"""

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.common import Contestant
from benchmarks.gpu_cases import BLOCK_S, CASES, MEASURED, TINY, TINY_KEYS, tiny

MODULE = "benchmarks.gpu_quarter_hour"


def serve(what: str, *arguments: str) -> None:
    """The contestant's side: builds, reports, and for each line read measures a block of calls."""
    if tiny():
        arguments = tuple(TINY.get(a, a) for a in arguments if a.partition("=")[0] not in TINY_KEYS)
    call, wait, report = MEASURED[what](*arguments)
    least = 0.05 if tiny() else BLOCK_S
    began = time.perf_counter()
    wait(call())
    count = max(1, math.ceil(least / max(time.perf_counter() - began, 1e-6)))
    print(json.dumps(report | {"calls": count, "peak": peak()}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(count):
            last = call()
        wait(last)
        print((time.perf_counter() - began) / count, flush=True)


def peak() -> float | None:
    """The device's FLOP/s in bfloat16 by its data sheet; None for a device that is not in the table."""
    if "jax" not in sys.modules:
        return None
    import jax

    from transformer.training.logging.throughput import peak_of_kind

    rate_of_kind = peak_of_kind(jax.devices()[0].device_kind, "bfloat16")
    return rate_of_kind if rate_of_kind and math.isfinite(rate_of_kind) else None


def gpu_now() -> dict[str, str]:
    """The clock (MHz), power (W) and temperature (°C) of the first GPU; {} without one."""
    names = "clocks.sm,power.draw,temperature.gpu"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader,nounits", "-i", "0"]
        line = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return dict(zip(names.split(","), line.strip().split(", "), strict=True))
    return {}


def append(file: Path, **record: Any) -> None:
    """Appends a line of JSON, which is on disk when this returns."""
    with file.open("a") as out:
        out.write(json.dumps(record) + "\n")
        out.flush()
        os.fsync(out.fileno())


def measure(name: str, file: Path) -> None:
    """One case: starts its contestants, and appends each block's figure to the file."""
    case, started = CASES[name], {}
    for who, (what, *arguments) in case.contestants.items():
        try:
            started[who] = Contestant(MODULE, what, *arguments)
        except SystemExit as error:
            append(file, case=name, who=who, error=str(error))
        else:
            append(file, case=name, who=who, **started[who].report)
    for _ in range(1 if tiny() else case.rounds):
        for who, contestant in [*started.items()]:
            try:
                contestant.measure()
            except SystemExit as error:
                append(file, case=name, who=who, error=str(error))
                del started[who]
            else:
                append(file, case=name, who=who, seconds=contestant.seconds[-1], **gpu_now())
    for contestant in started.values():
        contestant.close()


def rows(records: list[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """The table: a row for each contestant that was measured or has failed."""
    contestants: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        if "who" in record:
            contestants.setdefault((record["case"], record["who"]), []).append(record)
    blocks = {key: [r["seconds"] for r in some if "seconds" in r] for key, some in contestants.items()}
    tokens = {
        key: next((r["tokens"] for r in some if "tokens" in r), None) for key, some in contestants.items()
    }
    for (case, who), some in contestants.items():
        facts: dict[str, Any] = {name: value for record in some for name, value in record.items()}
        seconds = blocks[case, who]
        first = next(key for key in blocks if key[0] == case)
        row: dict[str, object] = {
            "case": case,
            "who": who,
            **dict.fromkeys(("ms", "tokens/s", "TFLOP/s", "MFU"), "-"),
        }
        if seconds:
            middle, flops = statistics.median(seconds), facts.get("flops", 0)
            row["ms"] = f"{1e3 * middle:.3f}"
            row["tokens/s"] = f"{facts['tokens'] / middle:,.0f}" if "tokens" in facts else "-"
            row["TFLOP/s"] = f"{flops / middle / 1e12:.1f}" if flops else "-"
            row["MFU"] = f"{flops / middle / facts['peak']:.1%}" if flops and facts["peak"] else "-"
        same_work = tokens[first] and tokens[first] == tokens[case, who]
        ratios = [b / a for a, b in zip(blocks[first], seconds, strict=False)] if same_work else []
        row["first is faster"] = f"{statistics.median(ratios):.3f}x" if ratios else "-"
        row["GB"] = f"{facts['gb']:.2f}" if facts.get("gb") else "-"
        row["compile s"] = f"{facts['compile_s']:.0f}" if "compile_s" in facts else "-"
        row["note"] = facts.get("error") or facts.get("said") or ""
        yield row


def main() -> None:
    """Parses flags; measures case after case until the time is over; prints the table."""
    about = "\n".join(f"  {name:10}{case.about}" for name, case in CASES.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{about}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="the file of figures, which must not exist")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--tiny", action="store_true", help="rehearse with small models")
    flags = parser.parse_args()
    if flags.worker:
        return serve(*flags.worker)
    if flags.out is None:
        parser.error("--out is required")
    if flags.case:
        return measure(flags.case, flags.out)
    if flags.out.exists():
        parser.error(f"--out: {flags.out} exists; name a new file")
    os.environ |= {**common.SHARED, **({"QUARTER_HOUR_TINY": "1"} if flags.tiny else {})}
    end = time.monotonic() + 60 * flags.minutes
    append(flags.out, machine=common.machine(), command=" ".join(sys.argv), **gpu_now())
    for name in flags.cases:
        left = end - time.monotonic()
        if left < 20:
            append(flags.out, case=name, left_out="the time is over")
            continue
        command = [sys.executable, "-m", MODULE, f"--case={name}", f"--out={flags.out}"]
        child = subprocess.Popen(command, start_new_session=True)
        try:
            child.wait(min(left, 600 if flags.tiny else CASES[name].seconds))
        except subprocess.TimeoutExpired:
            append(flags.out, case=name, left_out="not finished within its time")
        finally:  # with the contestants, which are of its session
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    records = [json.loads(line) for line in flags.out.read_text().splitlines()]
    print(records[0]["machine"])
    print(common.table(measured) if (measured := [*rows(records)]) else "nothing was measured")
    for record in records:
        if "left_out" in record:
            print(f"{record['case']}: {record['left_out']}")
    return None


if __name__ == "__main__":
    main()
