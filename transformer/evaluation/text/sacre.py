"""BLEU and chrF, computed by sacreBLEU."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.errors import UserError
from transformer.evaluation.text.text_metric import MetricOptions, TextMetric


class Sacre(TextMetric):
    """A corpus metric of sacreBLEU."""

    name: str

    def __init__(self, options: MetricOptions) -> None:
        """Raises a `UserError` if sacreBLEU does not support the options."""
        self._metric = self._make(options)

    @abstractmethod
    def _make(self, options: MetricOptions) -> Any:
        """The metric of sacreBLEU."""

    def statistics(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """The statistics of sacreBLEU for each text: n-gram matches and lengths."""
        most = max(map(len, references))
        streams = [[several[i] if i < len(several) else None for several in references] for i in range(most)]
        statistics = self._metric._extract_corpus_statistics(list(texts), streams)
        return np.array(statistics, np.float64)

    def scores(self, total_k: np.ndarray, count: int) -> dict[str, float]:
        """The score, in [0, 100]."""
        return {self.name: float(self._metric._compute_score_from_stats(total_k.tolist()).score)}

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """The signature of sacreBLEU."""
        counts = {len(several) for several in references}
        self._metric.num_refs = counts.pop() if len(counts) == 1 else -1
        return str(self._metric.get_signature())


class Bleu(Sacre):
    """BLEU = 100 BP exp(sum_{n=1}^{4} log p_n / 4).

    p_n is the clipped n-gram precision (counts clipped to the maximum over the references), and
    BP = min(1, exp(1 - r / c)) the brevity penalty for c words against r words of the references closest in
    length. Texts are detokenised; `bleu_tokenizer` splits them into words; case matters.
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
    """chrF2 = 100 (1 + 2^2) P R / (2^2 P + R), with P and R the mean precision and recall of character
    n-grams, n = 1 to 6, without white space; with several references, the best one of each text.

    Source: Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation".
    """

    name, WORDS = "chrf", 0

    def _make(self, options: MetricOptions) -> Any:
        from sacrebleu.metrics import CHRF

        return CHRF(word_order=self.WORDS)


class ChrfWords(Chrf):
    """chrF++: chrF with word unigrams and bigrams.

    Source: Popović 2017, "chrF++: words helping character n-grams".
    """

    name, WORDS = "chrf++", 2
