"""Time and memory of a training step under several settings of malloc.

    python -m benchmarks.malloc_settings [--cases S-float32 M-float32 translation] [--repeats 3]

The settings run one after another in their own processes, since two of size M may not fit into memory. Time
is processor time, user and system, on which other work on the machine has little influence.
"""

import argparse
import statistics

from benchmarks import common, train_speed
from benchmarks.common import Contestant
from transformer.runtime import MALLOC

LARGE = "glibc.malloc.hugetlb=1"
ONE = "glibc.malloc.arena_max=1"


def _kept(mmap: int, trim: int) -> str:
    return f"{LARGE}:{ONE}:glibc.malloc.mmap_threshold={mmap}:glibc.malloc.trim_threshold={trim}"


CASES = {case: ("benchmarks.train_speed", case) for case in train_speed.CASES}
CASES["translation"] = ("benchmarks.translation_speed", "train")
"""Name of a row -> the benchmark whose training step is measured, and its case."""

SETTINGS = {
    "launch.py's": MALLOC["GLIBC_TUNABLES"],
    "malloc's own": "glibc.malloc.check=0",
    "large pages": LARGE,
    "kept, in any number of heaps": MALLOC["GLIBC_TUNABLES"].replace(ONE + ":", ""),
    "kept, small pages": MALLOC["GLIBC_TUNABLES"].replace(LARGE + ":", ""),
    "kept up to 1 GB": _kept(2**40, 2**30),
    "kept if below 256 MB": _kept(2**28, 2**40),
    "kept if below 64 MB": _kept(2**26, 2**40),
}
"""Name of a row -> GLIBC_TUNABLES."""


def main() -> None:
    """Parses flags, measures, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["S-float32", "M-float32"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    print(common.machine(), flush=True)
    rows: list[dict[str, object]] = []
    for case in flags.cases:
        for name in flags.settings:
            module, step = CASES[case]
            contestant = Contestant(module, "ours", step, GLIBC_TUNABLES=SETTINGS[name])
            spent = []
            for _ in range(flags.repeats):
                before = contestant.processor_seconds()
                contestant.measure()
                spent.append(
                    [after - one for after, one in zip(contestant.processor_seconds(), before, strict=True)]
                )
            resident = contestant.resident_gb()
            contestant.close()
            own, system = (statistics.median(seconds) for seconds in zip(*spent, strict=True))
            rows.append(
                {
                    "size": case,
                    "malloc": name,
                    "processor s/step": f"{own + system:.2f}",
                    "of it system": f"{system:.2f}",
                    "most resident GB": f"{contestant.report['memory_gb']:.2f}",
                    "resident between steps GB": f"{resident:.2f}",
                    "program GB": f"{contestant.report['program_gb']:.2f}",
                }
            )
            print(*rows[-1].values(), flush=True)
    print(common.table(rows))


if __name__ == "__main__":
    main()
