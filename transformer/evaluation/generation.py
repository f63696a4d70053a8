"""Scores of what a model generates."""

from collections.abc import Callable, Sequence
from typing import Any

from transformer.training.experiment import Params


class GenerationEvaluator:
    """scores(generate(params, sources), references), over the first `limit` pairs (0: all)."""

    def __init__(
        self,
        generate: Callable[[Params, Sequence[Any]], list[str]],
        sources: Sequence[Any],
        references: Sequence[str],
        scores: Callable[[list[str], list[str]], dict[str, float]],
        limit: int = 0,
    ) -> None:
        self._generate, self._scores = generate, scores
        self._sources, self._references = sources[: limit or None], list(references[: limit or None])

    def __call__(self, params: Params) -> dict[str, float]:
        """{"bleu": ...}: whatever `scores` measures."""
        return self._scores(self._generate(params, self._sources), self._references)
