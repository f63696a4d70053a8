"""The metrics of generated texts, by the names of the key `generate.metric`."""

from collections.abc import Callable

from transformer.errors import UserError
from transformer.evaluation.exact import ExactMatch
from transformer.evaluation.rouge import Rouge
from transformer.evaluation.sacre import Bleu, Chrf, ChrfWords
from transformer.evaluation.text_metric import MetricOptions, TextMetric

METRICS: dict[str, Callable[[MetricOptions], TextMetric]] = {
    "bleu": Bleu,
    "chrf": Chrf,
    "chrf++": ChrfWords,
    "rouge": Rouge,
    "exact_match": ExactMatch,
}
"""By the names that `generate.metric` has with commas between; "none" is none."""

NONE = "none"


def metric_names(listed: str) -> list[str]:
    """The members of `METRICS` that are listed, with commas between.

    Raises:
      UserError: a name that is none of them, or stands there twice.
    """
    names = [name.strip() for name in listed.split(",")]
    if names == [NONE]:
        return []
    for name in names:
        if name not in METRICS or names.count(name) > 1:
            expected = f"{', '.join(METRICS)}, several with commas between, or {NONE}"
            raise UserError(f"metric: {listed!r}; expected of {expected}")
    return names


def make_metrics(listed: str, options: MetricOptions) -> list[TextMetric]:
    """Those metrics; raises as `metric_names` does."""
    return [METRICS[name](options) for name in metric_names(listed)]
