"""Speed of making batches: tokens per second of the loaders of some configs, on one thread.

    python -m benchmarks.loading [--cases lm translation ...] [--repeats 50]
    python -m benchmarks.loading --megabytes 1 4 16 [--sources jsonl parquet ...]

A train step that takes less time than a batch waits for it (`train/input_wait` in the metrics of a run). Data
are prepared before, in the user's cache. "tokens" are the places of a batch, padding too, without those of
the source of a pair.

With `--megabytes` it measures how fast files of these sizes are opened (their records are found and divided,
and the result is cached) and all their texts read, by the time of the processor: where the work is linear,
MB/s are alike for all sizes.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import common

CASES = {
    "lm": ("configs/lm.py", (("data.sequence_length", "1024"), ("train.batch_size", "16"))),
    "translation": ("configs/translation.py", (("train.batch_size", "32"),)),
    "bert": ("configs/bert.py", (("data.next_sentence", "false"),)),
    "bert-pairs": ("configs/bert.py", ()),
    "classification": ("configs/classification.py", ()),
}
"""Name -> config and keys."""


Pair = tuple[str, str]
"""A text and its label."""


def _joined(separator: str) -> Callable[[Path, Sequence[Pair]], str]:
    def write(path: Path, pairs: Sequence[Pair]) -> str:
        path.write_text("".join(f"{separator.join(pair)}\n" for pair in [("text", "label"), *pairs]))
        return str(path)

    return write


def _text(path: Path, pairs: Sequence[Pair]) -> str:
    path.write_text("".join(f"{text}\n" for text, _ in pairs))
    return str(path)


def _json_lines(path: Path, pairs: Sequence[Pair]) -> str:
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in pairs))
    return str(path)


def _parquet(path: Path, pairs: Sequence[Pair]) -> str:
    from pyarrow import parquet

    parquet.write_table(_table(pairs), path, row_group_size=ROWS, compression="none", use_dictionary=False)
    return str(path)


def _saved_dataset(path: Path, pairs: Sequence[Pair]) -> str:
    import pyarrow

    path.mkdir()
    table = _table(pairs)
    with pyarrow.ipc.new_stream(path / "a.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=ROWS)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    return str(path)


def _table(pairs: Sequence[Pair]) -> Any:
    import pyarrow

    return pyarrow.table(dict(zip(("text", "label"), map(list, zip(*pairs, strict=True)), strict=True)))


def _aligned(path: Path, pairs: Sequence[Pair]) -> str:
    path.mkdir()
    return f"{_text(path / 'source', pairs)},{_text(path / 'target', [(label, '') for _, label in pairs])}"


def _squad(path: Path, pairs: Sequence[Pair]) -> str:
    paragraphs = [{"context": text, "qas": [{"question": f"{label}?"}]} for text, label in pairs]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return str(path)


ROWS = 1000
"""The rows of a group of a table, as `datasets` writes them."""

FILES: dict[str, tuple[Callable[[Path, Sequence[Pair]], str], dict[str, Any]]] = {
    "text": (_text, {"document": "line"}),
    "jsonl": (_json_lines, {"fields": ("text", "label"), "reads": ("text",)}),
    "tsv": (_joined("\t"), {"fields": ("text", "label"), "reads": ("text",)}),
    "csv": (_joined(","), {"fields": ("text", "label"), "reads": ("text",)}),
    "parquet": (_parquet, {"fields": ("text", "label"), "reads": ("text",)}),
    "hf": (_saved_dataset, {"fields": ("text", "label"), "reads": ("text",)}),
    "aligned": (_aligned, {"field": "source", "reads": ("source",)}),
    "squad": (_squad, {"field": "context", "reads": ("context",)}),
}
"""Kind of source -> what writes a file, and returns what follows the colon; and the options to open it."""

TEXT_BYTES = 100
"""The length of a text, about that of a sentence."""


def measure_file(kind: str, megabytes: float) -> dict[str, object]:
    """Seconds of processor time to open a file of this many megabytes of text, to open it again, and to read
    all its texts."""
    from transformer.data.sources import open_source

    write, options = FILES[kind]
    pairs = [
        (f"text {i} ".ljust(TEXT_BYTES, "x"), f"{i % 5}") for i in range(int(megabytes * 1e6) // TEXT_BYTES)
    ]
    with tempfile.TemporaryDirectory() as folder:
        name = f"{kind}:{write(Path(folder) / 'file', pairs)}"
        seconds = []
        for _ in range(2):
            start = time.process_time()
            len(open_source(name, "train", cache_dir=f"{folder}/cache", **options))
            seconds.append(time.process_time() - start)
        source = open_source(name, "train", cache_dir=f"{folder}/cache", divide=False, **options)
        count, start = len(source), time.process_time()
        for index in range(count):
            source.text(index)
        seconds.append(time.process_time() - start)
    row: dict[str, object] = {"source": kind, "MB": f"{megabytes:g}", "records": f"{count:,}"}
    for what, taken in zip(("open", "open again", "read"), seconds, strict=True):
        row |= {f"{what}, s": f"{taken:.3f}", f"{what}, MB/s": f"{megabytes / taken:,.0f}"}
    return row


def measure_case(case: str, repeats: int) -> dict[str, object]:
    """The time to make a batch of the loader of a config."""
    from transformer.run_folder import RunFolder
    from workdir.opening import open_to_train

    config, keys = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        loader = open_to_train(RunFolder(folder), keys, config, False, ()).loader
        loader.batch_at(0)  # opens what is opened once
        seconds = []
        for step in range(1, 1 + repeats):
            start = time.perf_counter()
            batch = loader.batch_at(step)
            seconds.append(time.perf_counter() - start)
    size, middle = batch["tokens"].size, statistics.median(seconds)
    return {
        "case": case,
        "tokens of a batch": f"{size:,}",
        "ms": f"{1e3 * middle:.2f}",
        "best": f"{1e3 * min(seconds):.2f}",
        "tokens/s": f"{size / middle:,.0f}",
    }


def main() -> None:
    """Parses flags, measures, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=[*CASES])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--megabytes", nargs="+", type=float, default=[])
    parser.add_argument("--sources", nargs="+", choices=list(FILES), default=[*FILES])
    flags = parser.parse_args()
    if flags.megabytes:
        rows = [measure_file(kind, size) for kind in flags.sources for size in flags.megabytes]
    else:
        rows = [measure_case(case, flags.repeats) for case in flags.cases]
    print(common.machine(), common.table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
