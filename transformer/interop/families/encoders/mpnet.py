"""MPNet (Song et al. 2020), by its heads: RoBERTa's, with relative positions too."""

from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.families.encoders import bert
from transformer.interop.families.encoders.bert import EMBEDS, POOLED, SHARED, output_of, write_head
from transformer.interop.family import Values, value_or, whole_number
from transformer.interop.tensor_parts import heads, joined, linear, norm
from transformer.interop.tensor_rules import Rule

OFFSET = 2
"""The row of the first token in the table of positions."""


def encoder(model: Any) -> Iterator[Rule]:
    """The encoder, whose layers share the table of relative positions."""
    table = "mpnet.embeddings"
    yield Rule("encoder/embedding/table", f"{table}.word_embeddings.weight", "v d -> v d")
    yield Rule("encoder/trunk/position/table", f"{table}.position_embeddings.weight")
    yield from norm("encoder/trunk/embedding_norm", f"{table}.LayerNorm")
    ours, theirs = "encoder/trunk/blocks", "mpnet.encoder.layer.{n}"
    for name in ("query", "key", "value"):
        yield from heads(f"{ours}/attention/{name}", f"{theirs}.attention.attn.{name[0]}")
    yield from joined(f"{ours}/attention/output", f"{theirs}.attention.attn.o")
    relative = "mpnet.encoder.relative_attention_bias.weight"
    yield Rule(f"{ours}/attention/position/table", relative, "b h -> 1 b h")
    yield from norm(f"{ours}/attention_norm", f"{theirs}.attention.LayerNorm")
    yield from linear(f"{ours}/feed_forward/up", f"{theirs}.intermediate.dense")
    yield from linear(f"{ours}/feed_forward/down", f"{theirs}.output.dense")
    yield from norm(f"{ours}/feed_forward_norm", f"{theirs}.output.LayerNorm")


def masked(model: Any) -> Iterator[Rule]:
    """MPNet with the head of masked language modelling."""
    yield from encoder(model)
    yield from linear("transform", "lm_head.dense")
    yield from norm("transform_norm", "lm_head.layer_norm")
    yield Rule("output_bias", "lm_head.bias", "v -> v")


def classifier(model: Any) -> Iterator[Rule]:
    """MPNet with a head for classes, in which the pooler is."""
    yield from encoder(model)
    yield from linear("pooler/dense", "classifier.dense")
    yield from linear("head/classes", "classifier.out_proj")


def span(model: Any) -> Iterator[Rule]:
    """MPNet with the scores of the first and the last token of an answer."""
    yield from encoder(model)
    yield from linear("head/classes", "qa_outputs")


def read(config: Values) -> dict[str, Any]:
    """The number of positions, and the dropout of embeddings."""
    rows = whole_number(config, "max_position_embeddings", 512, OFFSET + 1)
    return {
        "max_length": rows - OFFSET,
        "embedding_dropout": value_or(config, "hidden_dropout_prob", 0.1),
    }


def write(model: Any) -> dict[str, Any]:
    """The reverse; raises `UserError` for other buckets of distances."""
    size = model.position_buckets or 32, model.position_distance or 128
    if size != (32, 128):
        raise UserError(f"model.position_buckets, position_distance: {size}; such models have (32, 128)")
    return {"max_position_embeddings": model.max_length + OFFSET}


def read_classifier(config: Values) -> dict[str, Any]:
    """`read`, with the keys of the head."""
    rate = value_or(config, "classifier_dropout", value_or(config, "hidden_dropout_prob", 0.1))
    return read(config) | {"pooling": "cls", "head_dropout": rate}


OPTIONS: dict[str, Any] = {
    "model_type": "mpnet",
    "keys": SHARED,
    "fixed": bert.FIXED
    | {
        "position": "learned_t5",
        "share_position": True,
        "position_offset": OFFSET,
        "num_token_types": 1,
    },
    "assumed": {
        "pad_token_id": OFFSET - 1,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": True,
    },
    "silent": frozenset(("classifier_dropout",)),
    "read": read,
    "write": write,
    "further": ("max_position_embeddings", "hidden_dropout_prob"),
    "written": ("max_length", "embedding_dropout", "position_buckets", "position_distance"),
    "prefix": "mpnet.",
}
MASKED = OPTIONS | {"fixed": OPTIONS["fixed"] | {"head_activation": "gelu_exact"}}


def ignored(model: Any) -> tuple[str, ...]:
    """The pooler, and numbers of positions in older files."""
    return (r"mpnet\.pooler\..*", r".*position_ids")


MPNET = bert.masked_family(
    **MASKED,
    architecture="MPNetForMaskedLM",
    rules=masked,
    ignored=ignored,
    copies=lambda model: output_of("lm_head"),
)
MPNET_CLASSIFIER = bert.classifier_family(
    **OPTIONS
    | {
        "read": read_classifier,
        "write": lambda model: write(model) | write_head(model),
        "further": (*OPTIONS["further"], "classifier_dropout"),
        "written": (*OPTIONS["written"], "pooling", "pooler", "head_dropout", "head_activation", "head_bias"),
    },
    architecture="MPNetForSequenceClassification",
    rules=classifier,
)
MPNET_SPAN = bert.span_family(
    **OPTIONS, architecture="MPNetForQuestionAnswering", rules=span, ignored=ignored
)
MPNET_BARE = bert.masked_family(
    **MASKED | {"written": (*OPTIONS["written"], *POOLED)},
    **EMBEDS,
    architecture="MPNetModel",
    rules=encoder,
    ignored=ignored,
)
