"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2020), by their heads: BERT's tables."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from transformer.interop.families.encoders.bert import (
    EMBEDS,
    FIXED,
    POOLED,
    SHARED,
    WRITTEN,
    classifier_family,
    classifier_read,
    classifier_write,
    encoder,
    masked_family,
    output_of,
    read,
    span,
    span_family,
    write,
)
from transformer.interop.tensor_parts import linear, norm
from transformer.interop.tensor_rules import Rule


def roberta_masked(model: Any) -> Iterator[Rule]:
    """RoBERTa with the head of masked language modelling."""
    yield from encoder("roberta")
    yield from linear("transform", "lm_head.dense")
    yield from norm("transform_norm", "lm_head.layer_norm")
    yield Rule("output_bias", "lm_head.bias", "v -> v")


def roberta_classifier(model: Any) -> Iterator[Rule]:
    """RoBERTa with a head for classes, in which the pooler is."""
    yield from encoder("roberta")
    yield from linear("pooler/dense", "classifier.dense")
    yield from linear("head/classes", "classifier.out_proj")


ROBERTA = masked_family(
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    keys=SHARED,
    fixed=FIXED | {"head_activation": "gelu_exact"},  # whatever that of the feed-forwards is
    read=functools.partial(read, offset=True),
    write=functools.partial(write, offset=True),
    rules=roberta_masked,
    prefix="roberta.",
    ignored=lambda model: (r"roberta\.pooler\..*", r".*position_ids"),
    copies=lambda model: output_of("lm_head"),
)
ROBERTA_CLASSIFIER = classifier_family(
    model_type="roberta",
    architecture="RobertaForSequenceClassification",
    keys=SHARED,
    read=functools.partial(classifier_read, offset=True),
    write=functools.partial(classifier_write, offset=True),
    rules=roberta_classifier,
    prefix="roberta.",
)
ROBERTA_SPAN = span_family(
    model_type="roberta",
    architecture="RobertaForQuestionAnswering",
    read=functools.partial(read, offset=True),
    write=functools.partial(write, offset=True),
    rules=functools.partial(span, prefix="roberta"),
    prefix="roberta.",
    ignored=lambda model: (r"roberta\.pooler\..*", r".*position_ids"),
)
ROBERTA_BARE = masked_family(
    model_type="roberta",
    architecture="RobertaModel",
    keys=SHARED,
    fixed=FIXED | {"head_activation": "gelu_exact"},
    read=functools.partial(read, offset=True),
    write=functools.partial(write, offset=True),
    written=(*WRITTEN, *POOLED),
    rules=lambda model: encoder("roberta"),
    **EMBEDS,
    prefix="roberta.",
    ignored=lambda model: (r"roberta\.pooler\..*", r".*position_ids"),
)

XLM_ROBERTA, XLM_ROBERTA_CLASSIFIER, XLM_ROBERTA_SPAN, XLM_ROBERTA_BARE = (
    dataclasses.replace(family, model_type="xlm-roberta", architecture=f"XLM{family.architecture}")
    for family in (ROBERTA, ROBERTA_CLASSIFIER, ROBERTA_SPAN, ROBERTA_BARE)
)
