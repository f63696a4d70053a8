"""BLEU by the length of the source for several trained runs.

    python -m benchmarks.bleu_by_length runs/transformer runs/additive runs/none \\
        --source=aligned:test.en,test.de --picture=docs/bleu_by_length.png

Every run translates the same pairs with its own decoding config; lengths are in words of the source.
"""

import argparse
import time
from pathlib import Path

from benchmarks import common

SIDES = ("source", "target")
EDGES = [1, 8, 11, 14, 18, 1000]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--edges", nargs="+", type=int, default=EDGES)
    parser.add_argument("--picture", type=Path)
    flags = parser.parse_args()

    from transformer.data.sources import open_source
    from transformer.evaluation.text.bleu import bleu, bleu_by_length
    from workdir.opening import load

    sources, references = (
        list(open_source(flags.source, "test", field=field, fields=SIDES, divide=False).texts())
        for field in SIDES
    )
    sources, references = ([text.strip() for text in side] for side in (sources, references))
    lengths = [len(source.split()) for source in sources]
    print(common.machine(), flush=True)
    rows, curves = [], {}
    for path in flags.runs:
        run, params = load(path)
        start = time.perf_counter()
        with run.placed():
            written = [answers[0] for answers in run.experiment.predict(params, sources)]
        seconds = time.perf_counter() - start
        score, signature = bleu(written, references)
        parts = curves[path.name] = bleu_by_length(written, references, lengths, flags.edges)
        row: dict[str, object] = {"run": path.name, "BLEU": f"{score:.2f}"}
        row |= {f"{low}-{high - 1} words ({count})": f"{part:.1f}" for low, high, count, part in parts}
        rows.append(row | {"sentences/s": f"{len(sources) / seconds:.1f}"})
        print(path.name, f"{score:.2f}", signature, flush=True)
    print(common.table(rows))
    if flags.picture:
        draw(curves, flags.picture)


def draw(curves: dict[str, list[tuple[int, int, int, float]]], path: Path) -> None:
    """Draws one line per run, with one point per range of lengths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, parts in curves.items():
        axes.plot([part[3] for part in parts], marker="o", label=name)
    first = next(iter(curves.values()))
    labels = [f"{low} to {high - 1}" for low, high, _, _ in first]
    labels[-1] = f"{first[-1][0]} and more"
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel("words of the source")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
