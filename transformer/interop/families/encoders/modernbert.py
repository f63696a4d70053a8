"""ModernBERT (Warner et al. 2024), by its heads."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.families.encoders.bert import EMBEDS, GELU, POOLED, without_next
from transformer.interop.family import Family, Key, Values, positive_number, value_or, whole_number
from transformer.interop.tensor_parts import affine, joined, linear, norm
from transformer.interop.tensor_rules import Rule

GATED = {"gelu": "geglu_exact", "gelu_new": "geglu", "gelu_pytorch_tanh": "geglu", "silu": "swiglu"}
"""Their activations -> our gated feed-forwards."""

TYPES = {"full": "full_attention", "window": "sliding_attention"}
"""Our pattern -> their type of a layer."""

OF_LAYERS = ("pattern", "pattern_size", "position_base", "attention_norm")
"""Keys in which the layers of a model differ."""


def layers_of(model: Any) -> list[str]:
    """The kind of each layer."""
    return [(model.layers or ("",))[i % max(len(model.layers), 1)] for i in range(model.num_layers)]


def encoder(model: Any) -> Iterator[Rule]:
    """The encoder, in which the parameters of layers without a norm are a tree of their own."""
    bias = model.use_bias
    in_attention = bias and model.attention_bias
    yield Rule("encoder/embedding/table", "model.embeddings.tok_embeddings.weight", "v d -> v d")
    yield from norm("encoder/trunk/embedding_norm", "model.embeddings.norm", bias)
    yield from norm("encoder/trunk/final_norm", "model.final_norm", bias)
    names, theirs = layers_of(model), "model.layers.{n}"
    for name in dict.fromkeys(names):
        ours = f"encoder/trunk/blocks/{name}" if len({*names}) > 1 else "encoder/trunk/blocks"
        options: dict[str, Any] = {"layers": tuple(i for i, kind in enumerate(names) if kind == name)}
        inputs = tuple(f"{ours}/attention/{part}" for part in ("query", "key", "value"))
        gated = (f"{ours}/feed_forward/gate", f"{ours}/feed_forward/up")
        of_heads, of_hidden = "(c h k) -> c h k" if in_attention else None, "(c f) -> c f" if bias else None
        yield from affine(inputs, f"{theirs}.attn.Wqkv", "(c h k) d -> c d h k", of_heads, **options)
        yield from joined(f"{ours}/attention/output", f"{theirs}.attn.Wo", in_attention, **options)
        yield from affine(gated, f"{theirs}.mlp.Wi", "(c f) d -> c d f", of_hidden, **options)
        yield from linear(f"{ours}/feed_forward/down", f"{theirs}.mlp.Wo", bias, **options)
        if model.kinds[name].attention_norm:
            yield from norm(f"{ours}/attention_norm", f"{theirs}.attn_norm", bias, **options)
        yield from norm(f"{ours}/feed_forward_norm", f"{theirs}.mlp_norm", bias, **options)


def hidden(model: Any) -> Iterator[Rule]:
    """The hidden layer of the heads."""
    yield from encoder(model)
    yield from linear("transform", "head.dense", model.head_bias)
    yield from norm("transform_norm", "head.norm", model.use_bias)


def masked(model: Any) -> Iterator[Rule]:
    """ModernBERT with the head of masked language modelling."""
    yield from hidden(model)
    yield Rule("output_bias", "decoder.bias", "v -> v")


def classifier(model: Any) -> Iterator[Rule]:
    """ModernBERT with a head for classes."""
    yield from hidden(model)
    yield from linear("head/classes", "classifier")


BASES = {
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}
"""Their type of a layer -> the key of its base before version 5 of transformers, and the default."""


def alternating(count: int, every: int) -> list[str]:
    """The types of layers of which one in `every` attends to all tokens, the first one among them."""
    return ["sliding_attention" if i % every else "full_attention" for i in range(count)]


def bases(config: Values) -> dict[str, float]:
    """Their type of a layer -> the base of its rotary positions.

    Raises:
      UserError: positions of another kind, or a base that is not a number above 0.
    """
    parameters = value_or(config, "rope_parameters", {})
    if not isinstance(parameters, dict):
        raise UserError(f"rope_parameters: {parameters!r}; expected one for each type of layer")
    old = {name: positive_number(config, key, default) for name, (key, default) in BASES.items()}
    for name, rope in parameters.items():
        known = isinstance(rope, dict) and {*rope} <= {"rope_type", "rope_theta"}
        if name not in old or not known or rope.get("rope_type", "default") != "default":
            raise UserError(
                f"rope_parameters: {name[:80]}: {rope!r}; only the default rope_type is known here"
            )
        old[name] = positive_number(rope, "rope_theta", old[name])
    return old


def read(config: Values) -> dict[str, Any]:
    """Our keys of layers and biases.

    Raises:
      UserError: layers of an unknown type, positions or biases that cannot be expressed.
    """
    size, base = whole_number(config, "local_attention", 128) // 2 + 1, bases(config)
    local = {"pattern": "window", "pattern_size": size, "position_base": base["sliding_attention"]}
    keys: dict[str, dict[str, Any]] = {
        "full_attention": {"position_base": base["full_attention"]},
        "sliding_attention": local,
    }
    count, every = (
        whole_number(config, "num_hidden_layers", 22, most=10_000),
        whole_number(config, "global_attn_every_n_layers", 3),
    )
    types = value_or(config, "layer_types", alternating(count, every))
    if not isinstance(types, list) or len(types) != count or not all(kind in [*keys] for kind in types):
        raise UserError(f"layer_types: expected {count} of {', '.join(keys)}")
    names = ["first", *({"full_attention": "full", "sliding_attention": "local"}[kind] for kind in types[1:])]
    kinds = {"first": keys[types[0]] | {"attention_norm": False}}
    kinds |= dict(zip(names[1:], (keys[kind] for kind in types[1:]), strict=True))
    biases = [bool(value_or(config, name, False)) for name in ("norm_bias", "mlp_bias", "attention_bias")]
    if biases[0] != biases[1] or biases[2] > biases[0]:
        raise UserError(
            f"norm_bias, mlp_bias, attention_bias: {biases}; expected alike, or the last alone false"
        )
    own = {"attention_bias": False} if biases[0] and not biases[2] else {}
    return own | {"use_bias": biases[0], "layers": names, "layer_kinds": kinds}


def write(model: Any) -> dict[str, Any]:
    """Their keys of layers and biases.

    Raises:
      UserError: layers that are none of theirs.
    """
    for name, kind in model.kinds.items():
        for field in dataclasses.fields(kind):
            own = field.name not in (*OF_LAYERS, "layers", "layer_kinds")
            if own and getattr(kind, field.name) != getattr(model, field.name):
                raise UserError(
                    f"model.layer_kinds.{name}.{field.name}: all layers of such models have the same"
                )
        if kind.pattern not in TYPES or (kind.pattern == "window" and kind.pattern_extra != 1):
            raise UserError(
                f"model.layer_kinds.{name}.pattern: expected 'full', or 'window' without dilation"
            )
    kinds = [model.kinds[name] for name in layers_of(model)]
    if [kind.attention_norm for kind in kinds] != [i > 0 for i in range(len(kinds))]:
        raise UserError("model.attention_norm: expected false in the first layer, and true in all others")
    bases_by_kind: dict[str, set[float]] = {
        theirs: {kind.position_base for kind in kinds if kind.pattern == ours}
        for ours, theirs in TYPES.items()
    }
    sizes = {kind.pattern_size for kind in kinds if kind.pattern == "window"} or {65}
    if len(sizes) > 1 or any(len(base_set) > 1 for base_set in bases_by_kind.values()):
        raise UserError(
            "model.layer_kinds: expected one pattern_size, and one position_base for each pattern"
        )
    rope = {
        name: {"rope_type": "default", "rope_theta": base}
        for name, base_set in bases_by_kind.items()
        for base in base_set
    }
    types, count = [TYPES[kind.pattern] for kind in kinds], len(kinds)
    older = {BASES[name][0]: values["rope_theta"] for name, values in rope.items()}
    if every := next((n for n in range(1, count + 1) if alternating(count, n) == types), 0):
        older["global_attn_every_n_layers"] = every
    return older | {
        "layer_types": types,
        "rope_parameters": rope,
        "local_attention": 2 * (sizes.pop() - 1),
        "norm_bias": model.use_bias,
        "mlp_bias": model.use_bias,
        "attention_bias": model.use_bias and model.attention_bias,
    }


def classifier_read(config: Values) -> dict[str, Any]:
    """`read`, with the head."""
    return read(config) | {"pooler": "masked_lm"}


def classifier_write(model: Any) -> dict[str, Any]:
    """`write`; raises `UserError` for another head."""
    if model.pooler != "masked_lm":
        raise UserError(f"model.pooler: {model.pooler!r}; expected 'masked_lm'")
    return write(model)


KEYS = (
    Key("vocab_size", "vocab_size", 50368),
    Key("d_model", "hidden_size", 768),
    Key("num_layers", "num_hidden_layers", 22),
    Key("num_heads", "num_attention_heads", 12),
    Key("d_ff", "intermediate_size", 1152),
    Key("max_length", "max_position_embeddings", 8192),
    Key("feed_forward", "hidden_activation", "gelu", GATED),
    Key("norm_epsilon", "norm_eps", 1e-5),
    Key("embedding_dropout", "embedding_dropout", 0.0),
    Key("attention_dropout", "attention_dropout", 0.0),
    Key("head_activation", "classifier_activation", "gelu", GELU | {"silu": "silu"}),
    Key("head_bias", "classifier_bias", False),
)

_family = functools.partial(
    Family,
    model_type="modernbert",
    fixed={"norm": "layer", "embedding_norm": True, "num_token_types": 1},
    assumed={"mlp_dropout": 0.0, "decoder_bias": True, "tie_word_embeddings": True},
    # Of the computation, or of no effect.
    silent=frozenset(
        (
            *("cls_token_id", "initializer_cutoff_factor", "deterministic_flash_attn", "sparse_prediction"),
            *("sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad", "layer_norm_eps"),
            *("position_embedding_type", "classifier_pooling", "classifier_dropout"),
        )
    ),
    further=(
        *("layer_types", "global_attn_every_n_layers", "rope_parameters", "global_rope_theta"),
        *("local_rope_theta", "local_attention", "norm_bias", "mlp_bias", "attention_bias"),
    ),
    prefix="model.",
)
WRITTEN = ("layers", "layer_kinds", "use_bias", "attention_bias", *OF_LAYERS)

MODERNBERT = _family(
    architecture="ModernBertForMaskedLM",
    experiment="masked_lm",
    keys=KEYS,
    rules=masked,
    read=read,
    write=write,
    written=WRITTEN,
    data=lambda config: {"next_sentence": False},
    write_data=without_next,
    copies=lambda model: {"decoder.weight": "encoder/embedding/table"},
)
MODERNBERT_CLASSIFIER = _family(
    architecture="ModernBertForSequenceClassification",
    experiment="classification",
    labelled=True,
    keys=(
        *KEYS,
        Key("pooling", "classifier_pooling", "cls", {"cls": "cls", "mean": "mean"}),
        Key("head_dropout", "classifier_dropout", 0.0),
    ),
    rules=classifier,
    read=classifier_read,
    write=classifier_write,
    written=(*WRITTEN, "pooler"),
)
MODERNBERT_BARE = _family(
    architecture="ModernBertModel",
    experiment="masked_lm",
    keys=KEYS,
    rules=encoder,
    **EMBEDS,
    read=read,
    write=write,
    written=(*WRITTEN, *POOLED),
    data=lambda config: {"next_sentence": False},
)
