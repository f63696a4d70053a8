"""How fast batches are made: tokens per second of the loaders of some configs, on one thread.

    python -m benchmarks.loading [--cases lm translation ...] [--repeats 50]

A train step that takes less time than a batch waits for it (`train/input_wait` in the metrics of a run). Data
are prepared before, in the user's cache. "tokens" are the places of a batch, padding too, without those of
the source of a pair.
"""

import argparse
import statistics
import tempfile
import time

from benchmarks import common

CASES = {
    "lm": ("configs/lm.py", (("data.sequence_length", "1024"), ("train.batch_size", "16"))),
    "translation": ("configs/translation.py", (("train.batch_size", "32"),)),
    "bert": ("configs/bert.py", (("data.next_sentence", "false"),)),
    "bert-pairs": ("configs/bert.py", ()),
    "classification": ("configs/classification.py", ()),
}
"""Name -> config and keys."""


def main() -> None:
    """Parses flags, measures, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=[*CASES])
    parser.add_argument("--repeats", type=int, default=50)
    flags = parser.parse_args()

    from commands.opening import open_to_train
    from commands.workdir import Workdir

    rows: list[dict[str, object]] = []
    for case in flags.cases:
        config, keys = CASES[case]
        with tempfile.TemporaryDirectory() as folder:
            loader = open_to_train(Workdir(folder), keys, config, False, ()).loader
            loader.batch_at(0)  # opens what is opened once
            seconds = []
            for step in range(1, 1 + flags.repeats):
                start = time.perf_counter()
                batch = loader.batch_at(step)
                seconds.append(time.perf_counter() - start)
        size, middle = batch["tokens"].size, statistics.median(seconds)
        rows.append(
            {
                "case": case,
                "tokens of a batch": f"{size:,}",
                "ms": f"{1e3 * middle:.2f}",
                "best": f"{1e3 * min(seconds):.2f}",
                "tokens/s": f"{size / middle:,.0f}",
            }
        )
    print(common.machine(), common.table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
