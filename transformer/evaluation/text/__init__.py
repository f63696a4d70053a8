"""The metrics of generated texts, by the values of the key `generate.metric`."""

from collections.abc import Callable

from transformer.errors import UnknownMember
from transformer.evaluation.text.exact import ExactMatch
from transformer.evaluation.text.rouge import Rouge
from transformer.evaluation.text.sacre import Bleu, Chrf, ChrfWords
from transformer.evaluation.text.text_metric import MetricOptions, TextMetric

METRICS: dict[str, Callable[[MetricOptions], TextMetric]] = {
    "bleu": Bleu,
    "chrf": Chrf,
    "chrf++": ChrfWords,
    "rouge": Rouge,
    "exact_match": ExactMatch,
}
"""Name -> constructor. `generate.metric` lists names separated by commas, or is "none"."""

NONE = "none"


def metric_names(listed: str) -> list[str]:
    """The members of `METRICS` in a comma-separated list.

    Raises:
      UserError: an unknown or repeated name.
    """
    names = [name.strip() for name in listed.split(",")]
    if names == [NONE]:
        return []
    for name in names:
        if name not in METRICS or names.count(name) > 1:
            expected = f"{', '.join(METRICS)}, several separated by commas, or {NONE}"
            raise UnknownMember(f"metric: {listed!r}; expected {expected}")
    return names


def make_metrics(listed: str, options: MetricOptions) -> list[TextMetric]:
    """The metrics in a comma-separated list; raises as `metric_names`."""
    return [METRICS[name](options) for name in metric_names(listed)]
