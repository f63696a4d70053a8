"""DistilBERT (Sanh et al. 2019), by its heads: BERT without token types and pooler."""

from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.families.encoders import bert
from transformer.interop.families.encoders.bert import EMBEDS, GELU, POOLED
from transformer.interop.family import Key, Values, value_or
from transformer.interop.tensor_parts import heads, joined, linear, norm
from transformer.interop.tensor_rules import Rule


def encoder(model: Any) -> Iterator[Rule]:
    """The encoder."""
    table = "distilbert.embeddings"
    yield Rule("encoder/embedding/table", f"{table}.word_embeddings.weight", "v d -> v d")
    yield Rule("encoder/trunk/position/table", f"{table}.position_embeddings.weight")
    yield from norm("encoder/trunk/embedding_norm", f"{table}.LayerNorm")
    ours, theirs = "encoder/trunk/blocks", "distilbert.transformer.layer.{n}"
    for name in ("query", "key", "value"):
        yield from heads(f"{ours}/attention/{name}", f"{theirs}.attention.{name[0]}_lin")
    yield from joined(f"{ours}/attention/output", f"{theirs}.attention.out_lin")
    yield from norm(f"{ours}/attention_norm", f"{theirs}.sa_layer_norm")
    yield from linear(f"{ours}/feed_forward/up", f"{theirs}.ffn.lin1")
    yield from linear(f"{ours}/feed_forward/down", f"{theirs}.ffn.lin2")
    yield from norm(f"{ours}/feed_forward_norm", f"{theirs}.output_layer_norm")


def masked(model: Any) -> Iterator[Rule]:
    """DistilBERT with the head of masked language modelling."""
    yield from encoder(model)
    yield from linear("transform", "vocab_transform")
    yield from norm("transform_norm", "vocab_layer_norm")
    yield Rule("output_bias", "vocab_projector.bias", "v -> v")


def classifier(model: Any) -> Iterator[Rule]:
    """DistilBERT with a head for classes."""
    yield from encoder(model)
    yield from linear("pooler/dense", "pre_classifier")
    yield from linear("head/classes", "classifier")


def span(model: Any) -> Iterator[Rule]:
    """DistilBERT with the scores of the first and the last token of an answer."""
    yield from encoder(model)
    yield from linear("head/classes", "qa_outputs")


def read(config: Values) -> dict[str, Any]:
    """The dropout of embeddings, which is that of all places."""
    return {"embedding_dropout": value_or(config, "dropout", 0.1)}


def classifier_read(config: Values) -> dict[str, Any]:
    """`read`, with the layer before the classes, whose activation is ReLU."""
    return read(config) | {"pooling": "cls", "pooler": "relu"}


def classifier_write(model: Any) -> dict[str, Any]:
    """No further keys; raises `UserError` for another head."""
    if model.pooling != "cls" or model.hidden_kind != "relu":
        raise UserError(f"model.pooling: {model.pooling!r}, pooler {model.pooler!r}; expected 'cls', 'relu'")
    return {}


HEAD = Key("head_activation", "activation", "gelu", GELU)

OPTIONS: dict[str, Any] = {
    "model_type": "distilbert",
    "keys": (
        Key("vocab_size", "vocab_size", 30522),
        Key("max_length", "max_position_embeddings", 512),
        Key("d_model", "dim", 768),
        Key("num_layers", "n_layers", 6),
        Key("num_heads", "n_heads", 12),
        Key("d_ff", "hidden_dim", 3072),
        Key("feed_forward", "activation", "gelu", GELU),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "attention_dropout", 0.1),
    ),
    "fixed": bert.FIXED | {"norm_epsilon": 1e-12, "num_token_types": 1},
    "assumed": {"tie_word_embeddings": True},
    # Sinusoids are stored as a table of positions too; the others are of training, or of another head.
    "silent": frozenset(("sinusoidal_pos_embds", "tie_weights_", "seq_classif_dropout", "qa_dropout")),
    "read": read,
    "further": (),
    "written": ("embedding_dropout",),
    "prefix": "distilbert.",
}
MASKED = OPTIONS | {"keys": (*OPTIONS["keys"], HEAD)}

DISTILBERT = bert.masked_family(
    **MASKED,
    architecture="DistilBertForMaskedLM",
    rules=masked,
    copies=lambda model: {"vocab_projector.weight": "encoder/embedding/table"},
)
DISTILBERT_CLASSIFIER = bert.classifier_family(
    **OPTIONS
    | {
        "keys": (*OPTIONS["keys"], Key("head_dropout", "seq_classif_dropout", 0.2)),
        "read": classifier_read,
        "written": ("embedding_dropout", "pooling", "pooler", "head_activation", "head_bias"),
    },
    architecture="DistilBertForSequenceClassification",
    write=classifier_write,
    rules=classifier,
)
DISTILBERT_SPAN = bert.span_family(**OPTIONS, architecture="DistilBertForQuestionAnswering", rules=span)
DISTILBERT_BARE = bert.masked_family(
    **MASKED | {"written": ("embedding_dropout", *POOLED)},
    **EMBEDS,
    architecture="DistilBertModel",
    rules=encoder,
)
