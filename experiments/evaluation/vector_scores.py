"""Evaluators of vectors: retrieval in a split; similarity and classification without training on a file."""

import itertools
from collections import defaultdict
from typing import Any

import jax
import numpy as np

from experiments.evaluation.text_vectors import Embedder
from transformer.data.images.images import ImageData
from transformer.data.sources import open_source
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.evaluation.embeddings import unit
from transformer.evaluation.ranking import AT_ONCE, ndcg_at, rank_relevant, recall_at, spearman
from transformer.evaluation.statistics.bootstrap import RESAMPLES, interval, interval_text, resampled
from transformer.evaluation.terms_by_row import replicated
from transformer.training.experiment import Params, Put

CUTS = (1, 5, 10)
"""The numbers k of passages that recall@k looks at."""


class Retrieval:
    """Which passages of a split answer each of its different queries? `recall@1`, `recall@5`, `recall@10` and
    `ndcg@10` are those of `transformer.evaluation.ranking`. `loss`, in nats, is -log p(own passage) over all
    different passages of the split but other answers, with the temperature of the run, and the mean over the
    answers of a query. With `loss.widths` there is `recall@10_of_32` of the first 32 dimensions, and so on.

    `train.evaluate_batches` limits the pairs, of which the passages are.
    """

    def __init__(self, experiment: Any, put: Put, split: str) -> None:
        """The experiment has `vectors` and a temperature."""
        c = experiment.config
        self._experiment, self._put, self._batches = experiment, put, c.train.evaluate_batches
        self._loader = experiment.loader(split, shuffle=self._batches > 0)

        def step(params: Params, batch: Any) -> Any:
            vectors = experiment.vectors(params, batch, jax.random.key(0), False)
            ids = batch["query_ids"], batch["passage_ids"]
            return jax.tree.map(replicated, ((*vectors, *ids), experiment.scale(params)))

        self._step = jax.jit(step)
        self._values_nk = np.zeros((0, 0))
        self._passages = 0

    def names(self, params: Params) -> list[str]:
        """The names of the results."""
        narrow = [f"recall@10_of_{width}" for width in self._experiment.config.loss.widths]
        return ["loss", *(f"recall@{k}" for k in CUTS), "ndcg@10", *narrow]

    def __call__(self, params: Params) -> dict[str, float]:
        """The means over the different queries.

        Raises:
          UserError: the split has no pair.
        """
        query_qd, passage_nd, relevant, scale = self._read(params)
        ranks = rank_relevant(query_qd, passage_nd, relevant)
        columns = [_losses(query_qd, passage_nd, relevant, scale)]
        columns += [recall_at(k, ranks) for k in CUTS] + [ndcg_at(10, ranks)]
        for width in self._experiment.config.loss.widths:
            query, passage = query_qd[:, :width], passage_nd[:, :width]
            if self._experiment.config.model.normalize:
                query, passage = unit(query), unit(passage)
            columns.append(recall_at(10, rank_relevant(query, passage, relevant)))
        self._values_nk, self._passages = np.stack(columns, axis=1), len(passage_nd)
        return dict(zip(self.names(params), self._values_nk.mean(axis=0).tolist(), strict=True))

    def _read(self, params: Params) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], float]:
        """The vectors of the different queries and passages, the numbers of the passages that answer each
        query, and the scale of scores."""
        queries: dict[int, np.ndarray] = {}
        passages: dict[int, tuple[int, np.ndarray]] = {}
        answers, scale = defaultdict(set), 1.0
        for batch in itertools.islice(self._loader.iterate(0), self._batches or None):
            arrays, scale = self._step(params, self._put(batch))
            for query_d, passage_cd, query_id, ids_c in zip(*map(on_host, arrays), strict=True):
                for passage_d, number in zip(passage_cd, ids_c.tolist(), strict=True):
                    if number >= 0:
                        passages.setdefault(number, (len(passages), passage_d))
                if query_id >= 0:
                    queries.setdefault(int(query_id), query_d)
                    answers[int(query_id)].add(passages[int(ids_c[0])][0])
        if not queries:
            raise UserError("evaluation: the data has 0 pairs; expected at least 1")
        vectors = np.stack([*queries.values()]), np.stack([vector_d for _, vector_d in passages.values()])
        return *vectors, [np.array(sorted(answers[query])) for query in queries], float(scale)

    def describe(self) -> dict[str, str]:
        """The number of queries and passages, and a bootstrap interval of each result over the queries."""
        n = len(self._values_nk)
        means = resampled(self._values_nk) / max(n, 1)
        texts = [interval_text(interval(values), f"{n:,} queries") for values in means.T]
        measured = {"measured": f"{n:,} queries in {self._passages:,} passages"}
        return measured | dict(zip(self.names(None), texts, strict=False))


def _losses(
    query_qd: np.ndarray, passage_nd: np.ndarray, relevant: list[np.ndarray], scale: float
) -> np.ndarray:
    """(q,): the mean over the answers of -log p, in float64."""
    losses = []
    for start in range(0, len(query_qd), AT_ONCE):
        score_qn = scale * (query_qd[start : start + AT_ONCE] @ passage_nd.T).astype(np.float64)
        for score_n, numbers in zip(score_qn, relevant[start:], strict=False):
            own, score_n = score_n[numbers], score_n.copy()
            score_n[numbers] = -np.inf
            negatives = np.logaddexp.reduce(score_n) if len(score_n) > len(numbers) else -np.inf
            losses.append(np.mean(np.logaddexp(own, negatives) - own))
    return np.array(losses)


class Similarity:
    """`spearman`, the correlation of the cosines of pairs of texts with the scores that people gave them.

    The file has JSON lines, {"first": "...", "second": "...", "score": 3.5}.
    Source: Cer et al. 2017 (STS benchmark), section 5; Reimers et al. 2016 for this correlation.

    Raises:
      UserError: the experiment has no vectors of texts; or a line is not such a pair.
    """

    def __init__(self, experiment: Any, put: Put, split: str, file: str) -> None:
        """The pairs are the same for every split."""
        self._embed = _embedder(experiment, "similarity")
        records = _records(experiment, "similarity", file, ("first", "second"), "score")
        self._firsts, self._seconds, scores = zip(*records, strict=True)
        try:
            self._score_n = np.array([*map(float, scores)])
        except ValueError as error:
            raise UserError(f"evaluate.also: similarity: {file}: score: {error}") from None
        self._cosine_n = np.zeros(0)

    def names(self, params: Params) -> list[str]:
        """The name of the result."""
        return ["spearman"]

    def __call__(self, params: Params) -> dict[str, float]:
        """The correlation, from -1 to 1."""
        first_nd, second_nd = (self._embed(params, texts) for texts in (self._firsts, self._seconds))
        self._cosine_n = np.sum(first_nd * second_nd, axis=1)
        return {"spearman": spearman(self._cosine_n, self._score_n)}

    def describe(self) -> dict[str, str]:
        """The number of pairs, and a bootstrap interval over them."""
        rng, n = np.random.default_rng(0), len(self._cosine_n)
        drawn = (rng.integers(n, size=n) for _ in range(RESAMPLES if n else 0))
        values = [spearman(self._cosine_n[i], self._score_n[i]) for i in drawn]
        ends = {"spearman": interval_text(interval(values), f"{n:,} pairs")} if n else {}
        return {"measured": f"{n:,} pairs"} | ends


class ZeroShot:
    """`accuracy` of a classifier that is not trained: the class of an input is the label whose vector is
    nearest.

    The file has JSON lines, {"text": "...", "label": "..."}; of a run of images and texts `text` is the path
    of an image. Source: Radford et al. 2021 (CLIP), section 3.1.

    Raises:
      UserError: the experiment has no vectors of texts; a line is not such a record; all have one label.
    """

    def __init__(self, experiment: Any, put: Put, split: str, file: str) -> None:
        """The inputs are the same for every split."""
        self._embed = _embedder(experiment, "zero_shot")
        pictured = isinstance(experiment.data, ImageData)
        self._read = Embedder(experiment, images=True, normalize=True) if pictured else self._embed
        records = _records(experiment, "zero_shot", file, ("text",), "label")
        self._inputs, labels = zip(*records, strict=True)
        self._labels = sorted({*labels})
        if len(self._labels) < 2:
            raise UserError(f"evaluate.also: zero_shot: {file}: one label, {labels[0]!r}; expected several")
        self._label_n = np.array([self._labels.index(label) for label in labels])
        self._right_n = np.zeros(0)

    def names(self, params: Params) -> list[str]:
        """The name of the result."""
        return ["accuracy"]

    def __call__(self, params: Params) -> dict[str, float]:
        """The accuracy, from 0 to 1."""
        cosine_nc = self._read(params, self._inputs) @ self._embed(params, self._labels).T
        self._right_n = (cosine_nc.argmax(axis=1) == self._label_n).astype(np.float64)
        return {"accuracy": float(self._right_n.mean())}

    def describe(self) -> dict[str, str]:
        """The number of inputs, and a bootstrap interval over them."""
        n = len(self._right_n)
        ends = interval(resampled(self._right_n[:, None])[:, 0] / n) if n else (0.0, 1.0)
        counts = f"{n:,} inputs, {len(self._labels)} labels"
        return {"measured": counts, "accuracy": interval_text(ends, f"{n:,} inputs")}


def _embedder(experiment: Any, name: str) -> Embedder:
    """Vectors of texts, of length 1."""
    try:
        embedder = Embedder(experiment, normalize=True)
    except UserError as error:
        raise UserError(f"evaluate.also: {name}: {error}") from None
    if embedder.images:
        raise UserError(f"evaluate.also: {name}: a run of {experiment.config.experiment} reads no texts")
    return embedder


def _records(
    experiment: Any, name: str, file: str, fields: tuple[str, ...], last: str
) -> list[tuple[str, ...]]:
    """The texts of these fields of all records, the last of which may be a number."""
    cache, every = experiment.data.config.cache_dir, (*fields, last)
    options: dict[str, Any] = {"cache_dir": cache, "divide": False, "fields": every}
    try:
        sources = [
            open_source(f"jsonl:{file}", "test", field=field, numbers=field == last, **options)
            for field in every
        ]
        records = [tuple(source.text(i) for source in sources) for i in range(len(sources[0]))]
    except UserError as error:
        raise UserError(f"evaluate.also: {name}: {error}") from None
    if not records:
        raise UserError(f"evaluate.also: {name}: {file} has no records in it")
    return records
