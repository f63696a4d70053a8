"""BLEU and chrF, computed by sacreBLEU."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.errors import UserError
from transformer.evaluation.text_metric import MetricOptions, TextMetric


class Sacre(TextMetric):
    """A corpus metric of sacreBLEU."""

    name: str

    def __init__(self, options: MetricOptions) -> None:
        """Raises a `UserError` where sacreBLEU lacks what the options ask for."""
        self._metric = self._make(options)

    @abstractmethod
    def _make(self, options: MetricOptions) -> Any:
        """The metric of sacreBLEU."""

    def statistics(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """sacreBLEU's own of each text: matches and lengths."""
        most = max(map(len, references))
        streams = [[given[i] if i < len(given) else None for given in references] for i in range(most)]
        found = self._metric._extract_corpus_statistics(list(texts), streams)
        return np.array(found, np.float64)

    def scores(self, total_k: np.ndarray, count: int) -> dict[str, float]:
        """The one score, in [0, 100]."""
        return {self.name: float(self._metric._compute_score_from_stats(total_k.tolist()).score)}

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """sacreBLEU's."""
        counts = {len(given) for given in references}
        self._metric.num_refs = counts.pop() if len(counts) == 1 else -1
        return str(self._metric.get_signature())


class Bleu(Sacre):
    """BLEU = 100 BP exp(sum_{n=1}^{4} log p_n / 4).

    p_n is the share of the texts' n-grams that their references have too (of several references the most),
    BP = min(1, exp(1 - r / c)) the penalty for being shorter, c words, than the nearest references, r. Texts
    are given as they are to be read, and split into words by `bleu_tokenizer`; case counts.
    Source: Papineni et al. 2002; Post 2018, "A call for clarity in reporting BLEU scores".
    """

    name = "bleu"

    def _make(self, options: MetricOptions) -> Any:
        from sacrebleu.metrics import BLEU

        try:
            return BLEU(tokenize=options.bleu_tokenizer, lowercase=False, force=True)
        except (ImportError, RuntimeError) as error:
            line = " ".join(str(error).split())
            raise UserError(f"generate.bleu_tokenizer: {options.bleu_tokenizer}: {line}") from None


class Chrf(Sacre):
    """chrF2 = 100 (1 + 2^2) P R / (2^2 P + R), the means of precision and recall of runs of one to six
    characters, white space left out; of several references the best one of each text.

    Source: Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation".
    """

    name, WORDS = "chrf", 0

    def _make(self, options: MetricOptions) -> Any:
        from sacrebleu.metrics import CHRF

        return CHRF(word_order=self.WORDS)


class ChrfWords(Chrf):
    """chrF++: chrF with words and pairs of words besides.

    Source: Popović 2017, "chrF++: words helping character n-grams".
    """

    name, WORDS = "chrf++", 2
