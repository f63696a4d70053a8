"""Search for functions by their docstrings: a run of configs/studies/search/functions.py beside tf-idf.

    python -m benchmarks.docstring_search --workdir=runs/functions --split=test

Queries are the different docstrings of a split that training has neither as a docstring nor with an equal
function; passages are all different functions of the split. Tf-idf reads whole functions and docstrings, cut
into words at capitals, digits and underscores, in lower case, with sublinear counts; its weights of words are
from the training functions. Intervals are of the bootstrap over queries, of differences with equal draws.
"""

import argparse
import re

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from transformer.evaluation.ranking import ndcg_at, rank_relevant, recall_at
from transformer.evaluation.statistics.bootstrap import interval, resampled
from workdir import embed, load

WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def words(text: str) -> list[str]:
    """The words of a text or of identifiers."""
    return [word.lower() for word in WORDS.findall(text)]


def main() -> None:
    """Prints a line for each measure: both systems and their difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--split", default="validation")
    flags = parser.parse_args()
    run, params = load(flags.workdir)
    train, here = (
        [tuple(source.text(i) for source in sources) for i in range(len(sources[0]))]
        for sources in (run.experiment.data.sources(split) for split in ("train", flags.split))
    )
    seen = {text for pair in train for text in pair}
    passages = [*dict.fromkeys(passage for _, passage in here)]
    numbers = {passage: i for i, passage in enumerate(passages)}
    answers: dict[str, set[int]] = {}
    for query, passage in here:
        answers.setdefault(query, set()).add(numbers[passage])
    known = {query for query, passage in here if query in seen or passage in seen}
    queries = [query for query in answers if query not in known]
    relevant = [np.array(sorted(answers[query])) for query in queries]
    counts = f"{len(queries):,} queries, {len(passages):,} functions of {flags.split}"
    print(f"{counts}; {len(known):,} queries left out as training has them or their function")

    tf_idf = TfidfVectorizer(analyzer=words, sublinear_tf=True).fit([passage for _, passage in train])
    by_words = [tf_idf.transform(texts).toarray() for texts in (queries, passages)]
    by_model = [embed(run, params, texts) for texts in (queries, passages)]
    columns = []
    for vectors in (by_words, by_model):
        ranks = rank_relevant(*vectors, relevant)
        columns.append([*(recall_at(k, ranks) for k in (1, 5, 10)), ndcg_at(10, ranks)])
    for i, name in enumerate(("recall@1", "recall@5", "recall@10", "ndcg@10")):
        theirs, ours = columns[0][i], columns[1][i]
        cells = []
        for label, values in (("tf-idf", theirs), ("model", ours), ("difference", ours - theirs)):
            low, high = interval(resampled(values[:, None])[:, 0] / len(values))
            cells.append(f"{label} {values.mean():.3f} ({low:.3f} to {high:.3f})")
        print(f"{name}: {', '.join(cells)}")


if __name__ == "__main__":
    main()
