"""Scores of generated texts against references."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from transformer.config import Nonnegative, NonnegativeFloat, Positive
from transformer.decoding.beam import BeamConfig
from transformer.decoding.sampling import DecodingConfig
from transformer.errors import UserError
from transformer.evaluation.statistics.bootstrap import interval_text
from transformer.evaluation.text import metric_names
from transformer.evaluation.text.text_metric import TextMetric, intervals
from transformer.training.experiment import Params


@dataclass(frozen=True)
class GenerateConfig(DecodingConfig, BeamConfig):
    """The decoding and the evaluation of targets."""

    max_new_tokens: Positive = 128  # longest target
    temperature: NonnegativeFloat = 0.0  # 0: beam search; above: sampling, with the keys top_k to stop
    with_scores: bool = False  # write the score and a tab before each target
    batch_size: Positive = 16  # sources decoded at once
    suppress: tuple[str, ...] = ()  # names of tokens that are never written, such as <pad>
    first: str = ""  # name of the token with which each target begins (BART: <s>); "": any
    metric: str = "bleu"  # comma-separated: bleu, chrf, chrf++, rouge, exact_match; or none
    # tokenization of BLEU, as sacreBLEU names it
    bleu_tokenizer: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"] = "13a"
    examples: Nonnegative = 200  # validation pairs decoded for the metrics; 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        metric_names(self.metric)
        of_search = {"n_best": 1, "with_scores": False}
        of_drawing = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "num_samples": 1}
        for key, off in (of_search if self.temperature else of_drawing).items():
            if (value := getattr(self, key)) != off:
                way = "sampling" if self.temperature else "beam search, which takes n_best"
                raise UserError(f"{key}: {value} with temperature {self.temperature:g}, which is {way}")


class GenerationEvaluator:
    """The scores by `metrics` of `generate(params, sources)` against the references of each source.

    For the last call, `describe` returns the number of texts by `measured()`, and for each score a 95 %
    interval and the metric's signature.
    """

    def __init__(
        self,
        generate: Callable[[Params, Sequence[Any]], list[str]],
        sources: Sequence[Any],
        references: Sequence[Sequence[str]],
        metrics: Sequence[TextMetric],
        measured: Callable[[], str],
        may_be_empty: bool = False,
    ) -> None:
        """`may_be_empty` says whether an empty text may be correct.

        Raises:
          UserError: there is no source.
        """
        if not sources:
            raise UserError("evaluation: the split has 0 pairs; expected at least 1")
        self._may_be_empty = may_be_empty
        self._generate, self._metrics = generate, metrics
        self._sources, self._references = sources, list(references)
        self._measured = measured
        self._statistics: list[np.ndarray] = []
        self._silent = 0

    def names(self, params: Params) -> list[str]:
        """The names of the scores."""
        return [name for metric in self._metrics for name in metric.measure(["a"], [["a"]])]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"bleu": ...}: the scores of all metrics; NaN if every generated text is empty."""
        texts, count = self._generate(params, self._sources), len(self._sources)
        self._silent = sum(not text.strip() for text in texts)
        if self._silent == count and not self._may_be_empty:
            self._statistics = []
            return dict.fromkeys(self.names(params), math.nan)
        self._statistics = [metric.statistics(texts, self._references) for metric in self._metrics]
        scores: dict[str, float] = {}
        for metric, statistics_nk in zip(self._metrics, self._statistics, strict=True):
            scores |= metric.scores(statistics_nk.sum(axis=0), count)
        return scores

    def describe(self) -> dict[str, str]:
        """{"measured": "200 of 1,000 pairs", "bleu": "95 % interval 27.5 to 30.3 ...; its signature"}."""
        description = {"measured": self._measured()}
        if self._silent:
            description["measured"] += f"; the generated text of {self._silent:,} is empty"
        if not self._statistics:
            return description
        for metric, statistics_nk in zip(self._metrics, self._statistics, strict=True):
            for name, ends in intervals(metric, statistics_nk).items():
                sure = interval_text(ends, f"{len(statistics_nk):,} texts")
                description[name] = f"{sure}; {metric.signature(self._references)}"
        return description
