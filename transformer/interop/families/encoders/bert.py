"""BERT (Devlin et al. 2019), by its heads."""

import functools
from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.family import Family, Key, Values, no_keys, value_or, whole_number
from transformer.interop.tensor_parts import heads, joined, linear, norm
from transformer.interop.tensor_rules import Rule

GELU = {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}
"""Their activations -> ours."""

RENAMED = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
"""Names in files that were converted from the TensorFlow of the papers -> those of today."""


def encoder(prefix: str) -> Iterator[Rule]:
    """The encoder, whose tensors start with `prefix`."""
    tables = {
        "encoder/token_types": "token_type_embeddings",
        "encoder/trunk/position": "position_embeddings",
    }
    yield Rule("encoder/embedding/table", f"{prefix}.embeddings.word_embeddings.weight", "v d -> v d")
    for ours, theirs in tables.items():
        yield Rule(f"{ours}/table", f"{prefix}.embeddings.{theirs}.weight")
    yield from norm("encoder/trunk/embedding_norm", f"{prefix}.embeddings.LayerNorm")
    ours, theirs = "encoder/trunk/blocks", f"{prefix}.encoder.layer.{{n}}"
    for name in ("query", "key", "value"):
        yield from heads(f"{ours}/attention/{name}", f"{theirs}.attention.self.{name}")
    yield from joined(f"{ours}/attention/output", f"{theirs}.attention.output.dense")
    yield from norm(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm")
    yield from linear(f"{ours}/feed_forward/up", f"{theirs}.intermediate.dense")
    yield from linear(f"{ours}/feed_forward/down", f"{theirs}.output.dense")
    yield from norm(f"{ours}/feed_forward_norm", f"{theirs}.output.LayerNorm")


def masked(model: Any) -> Iterator[Rule]:
    """BERT with the head of masked language modelling."""
    yield from encoder("bert")
    yield from linear("transform", "cls.predictions.transform.dense")
    yield from norm("transform_norm", "cls.predictions.transform.LayerNorm")
    yield Rule("output_bias", "cls.predictions.bias", "v -> v")


def pretraining(model: Any) -> Iterator[Rule]:
    """BERT with both heads. Their first class is that the second text follows, ours the second."""
    yield from masked(model)
    yield from linear("pooler/dense", "bert.pooler.dense")
    yield Rule("next/classes/kernel", "cls.seq_relationship.weight", "c d -> d c", reverse="c")
    yield Rule("next/classes/bias", "cls.seq_relationship.bias", "c -> c", reverse="c")


def bare(model: Any) -> Iterator[Rule]:
    """BERT without a head, maybe with the pooler."""
    yield from encoder("bert")
    yield from linear("pooler/dense", "bert.pooler.dense")


def classifier(model: Any) -> Iterator[Rule]:
    """BERT with a head for classes."""
    yield from encoder("bert")
    yield from linear("pooler/dense", "bert.pooler.dense")
    yield from linear("head/classes", "classifier")


def span(model: Any, prefix: str = "bert") -> Iterator[Rule]:
    """The encoder with the scores of the first and the last token of an answer."""
    yield from encoder(prefix)
    yield from linear("head/classes", "qa_outputs")


def output_of(head: str) -> dict[str, str]:
    """The output of a head, which is the table of embeddings, with a bias."""
    return {f"{head}.decoder.weight": "encoder/embedding/table", f"{head}.decoder.bias": "output_bias"}


def read(config: Values, offset: bool = False) -> dict[str, Any]:
    """Our keys of positions and token types; RoBERTa's positions start after the id of padding (`offset`)."""
    first = whole_number(config, "pad_token_id", 1, 0) + 1 if offset else 0
    types = whole_number(config, "type_vocab_size", 2)
    return {
        "max_length": whole_number(config, "max_position_embeddings", 512, first + 1) - first,
        "position_offset": first,
        "num_token_types": types,
        "token_type_bias": types == 1,
        "embedding_dropout": value_or(config, "hidden_dropout_prob", 0.1),
    }


def write(model: Any, offset: bool = False) -> dict[str, Any]:
    """Their keys of positions and token types.

    Raises:
      UserError: a vector that tells no types apart is lacking, or positions start elsewhere.
    """
    if model.num_token_types == 1 and not model.token_type_bias:
        raise UserError("model.num_token_types: 1; such models have a vector for all tokens: token_type_bias")
    if (model.position_offset > 0) != offset:
        expected = "1 or more, as padding has a row before them" if offset else "0"
        raise UserError(f"model.position_offset: {model.position_offset}; expected {expected}")
    own = {"pad_token_id": model.position_offset - 1} if offset else {}
    return own | {
        "max_position_embeddings": model.max_length + model.position_offset,
        "type_vocab_size": model.num_token_types,
    }


SHARED = (
    Key("vocab_size", "vocab_size", 30522),
    Key("d_model", "hidden_size", 768),
    Key("num_layers", "num_hidden_layers", 12),
    Key("num_heads", "num_attention_heads", 12),
    Key("d_ff", "intermediate_size", 3072),
    Key("feed_forward", "hidden_act", "gelu", GELU),
    Key("norm_epsilon", "layer_norm_eps", 1e-12),
    Key("dropout", "hidden_dropout_prob", 0.1),
    Key("attention_dropout", "attention_probs_dropout_prob", 0.1),
)
"""Keys of both."""

HEAD = Key("head_activation", "hidden_act", "gelu", GELU)
FIXED = {
    "norm": "layer",
    "norm_placement": "post",
    "position": "learned",
    "use_bias": True,
    "embedding_norm": True,
}
ASSUMED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}
# Of a multilingual BERT: sizes of a pooler that no model has.
SILENT = frozenset(
    (
        *("directionality", "pooler_type", "pooler_fc_size", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_num_attention_heads", "classifier_dropout"),
    )
)
READ = ("max_position_embeddings", "type_vocab_size", "hidden_dropout_prob")
WRITTEN = ("max_length", "position_offset", "num_token_types", "token_type_bias", "embedding_dropout")


def classifier_read(config: Values, offset: bool = False) -> dict[str, Any]:
    """`read`, with the keys of the head."""
    rate = value_or(config, "classifier_dropout", value_or(config, "hidden_dropout_prob", 0.1))
    return read(config, offset) | {"pooling": "cls", "head_dropout": rate}


def classifier_write(model: Any, offset: bool = False) -> dict[str, Any]:
    """`write`, with the keys of the head."""
    return write(model, offset) | write_head(model)


def write_head(model: Any) -> dict[str, Any]:
    """The keys of the head; raises `UserError` if it is none of BERT's."""
    if model.pooling != "cls" or model.hidden_kind != "tanh":
        raise UserError(f"model.pooling: {model.pooling!r}, pooler {model.pooler!r}; expected 'cls', 'tanh'")
    return {"classifier_dropout": model.head_dropout}


def without_next(config: Any) -> dict[str, Any]:
    """Nothing; raises `UserError` for a run of both of BERT's losses."""
    if config.next_sentence:
        raise UserError("data.next_sentence: True; expected False")
    return {}


def with_next(config: Any) -> dict[str, Any]:
    """Nothing; raises `UserError` for a run without next-sentence prediction."""
    if not config.next_sentence:
        raise UserError("data.next_sentence: False; expected True")
    return {}


masked_family = functools.partial(
    Family,
    experiment="masked_lm",
    fixed=FIXED,
    assumed=ASSUMED,
    silent=SILENT,
    further=READ,
    written=WRITTEN,
    data=lambda config: {"next_sentence": False},
    write_data=without_next,
)
classifier_family = functools.partial(
    Family,
    experiment="classification",
    labelled=True,
    fixed=FIXED,
    assumed=ASSUMED,
    silent=SILENT,
    further=(*READ, "classifier_dropout"),
    written=(*WRITTEN, "pooling", "pooler", "head_dropout", "head_activation", "head_bias"),
    ignored=lambda model: (r".*position_ids",),
)

span_family = functools.partial(
    Family,
    experiment="span_extraction",
    keys=SHARED,
    fixed=FIXED,
    assumed=ASSUMED,
    silent=SILENT,
    further=READ,
    written=WRITTEN,
)

HEADS = ("transform", "transform_norm", "output_bias", "pooler", "next")
"""The parts of the two heads of pre-training."""

EMBEDS: dict[str, Any] = {"heads": HEADS, "alone": "contrastive", "write_data": no_keys}
"""Of models without a head: runs that start from one have a new one, and a run of its own embeds texts."""

POOLED = ("pooling", "normalize")
"""Keys that are none of theirs: what follows the encoder in sentence-transformers."""

BERT = masked_family(
    model_type="bert",
    architecture="BertForMaskedLM",
    keys=(*SHARED, HEAD),
    read=read,
    write=write,
    rules=masked,
    prefix="bert.",
    renamed=RENAMED,
    # Files of both heads are also named after one of them.
    ignored=lambda model: (r"bert\.pooler\..*", r"cls\.seq_relationship\..*", r".*position_ids"),
    copies=lambda model: output_of("cls.predictions"),
)
BERT_PRETRAINING = masked_family(
    model_type="bert",
    architecture="BertForPreTraining",
    keys=(*SHARED, HEAD),
    read=read,
    write=write,
    rules=pretraining,
    prefix="bert.",
    renamed=RENAMED,
    data=lambda config: {"next_sentence": True},
    write_data=with_next,
    ignored=lambda model: (r".*position_ids",),
    copies=lambda model: output_of("cls.predictions"),
)
BERT_CLASSIFIER = classifier_family(
    model_type="bert",
    architecture="BertForSequenceClassification",
    keys=SHARED,
    read=classifier_read,
    write=classifier_write,
    rules=classifier,
    prefix="bert.",
    renamed=RENAMED,
)
BERT_SPAN = span_family(
    model_type="bert",
    architecture="BertForQuestionAnswering",
    read=read,
    write=write,
    rules=span,
    prefix="bert.",
    renamed=RENAMED,
    ignored=lambda model: (r"bert\.pooler\..*", r".*position_ids"),
)
BERT_BARE = masked_family(
    model_type="bert",
    architecture="BertModel",
    keys=(*SHARED, HEAD),
    read=read,
    write=write,
    written=(*WRITTEN, *POOLED),
    rules=bare,
    **EMBEDS,
    prefix="bert.",
    renamed=RENAMED,
    data=lambda config: {"next_sentence": True},  # a run of it has a pooler
    ignored=lambda model: (r".*position_ids",),
)
