"""A baseline for summarisation: the first sentences of the source.

    python -m benchmarks.lead_sentences --source=jsonl:dev.jsonl --source_field=article --target_field=summary

Prints ROUGE of the first 1, 2 and 3 sentences of each source against its targets, of all pairs of a file.
Sentences are those of `transformer.evaluation.text.rouge`. On news such leads are hard to beat (Nallapati et
al. 2017, "SummaRuNNer"; Narayan et al. 2018, "Don't give me the details, just the summary!").
"""

import argparse

from benchmarks import common
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.evaluation.text.rouge import Rouge, sentences

KEYS = ("source", "source_field", "target_field", "reference_fields")
"""Keys of `data` that are flags."""


def lead(text: str, count: int) -> str:
    """The first `count` sentences of a text, one per line."""
    return "\n".join(sentences(text).splitlines()[:count])


def main() -> None:
    """Prints a table with a row for each number of sentences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in KEYS:
        parser.add_argument(f"--{name}", default=getattr(PairDataConfig, name))
    parser.add_argument("--sentences", type=int, nargs="+", default=[1, 2, 3])
    flags = vars(parser.parse_args())
    counts, rouge = flags.pop("sentences"), Rouge()
    # As a validation source all of a file is read, and not a split of it.
    data = PairData(PairDataConfig(**flags | {"validation_source": flags["source"], "tokenizer": "bytes"}))
    sources, references = zip(*data.examples("validation"), strict=True)
    rows: list[dict[str, object]] = []
    for count in counts:
        scores = rouge.measure([lead(source, count) for source in sources], references)
        rows.append({"sentences": count} | {kind: f"{score:.2f}" for kind, score in scores.items()})
    print(common.table(rows))
    print(f"{len(sources):,} pairs; {rouge.signature(references)}")


if __name__ == "__main__":
    main()
