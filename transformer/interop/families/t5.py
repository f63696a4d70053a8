"""T5, version 1.0 and 1.1 (Raffel et al. 2020; Shazeer 2020), and mT5 (Xue et al. 2021)."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.family import Family, Key, Values, value_or
from transformer.interop.harmless import GENERATION, words_of
from transformer.interop.tensor_parts import heads, joined, linear, norm, tied_output
from transformer.interop.tensor_rules import Rule

FEED_FORWARDS = {
    "relu": "relu",
    "gated-gelu": "geglu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "silu": "silu",
    "gated-gelu_new": "geglu",
    "gated-silu": "swiglu",
}
"""Their feed_forward_proj -> our feed_forward."""


def rules(model: Any) -> Iterator[Rule]:
    """The tensors. The first layer has the table of positions of a stack."""
    plain: dict[str, Any] = {"bias": False}
    yield Rule("embedding/table", "shared.weight", "v d -> v d")
    for stack in ("encoder", "decoder"):
        blocks, block = f"{stack}_blocks", f"{stack}.block.{{n}}.layer"
        sublayers = {"attention": "0.SelfAttention"}
        if stack == "decoder":
            sublayers["cross_attention"] = "1.EncDecAttention"
        for ours, theirs in sublayers.items():
            for name in ("query", "key", "value"):
                yield from heads(f"{blocks}/{ours}/{name}", f"{block}.{theirs}.{name[0]}", **plain)
            yield from joined(f"{blocks}/{ours}/output", f"{block}.{theirs}.o", **plain)
            yield from norm(f"{blocks}/{ours}_norm", f"{block}.{theirs[0]}.layer_norm", **plain)
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Rule(f"{blocks}/attention/position/table", table, "b h -> 1 b h")
        feed, last = f"{blocks}/feed_forward", f"{block}.{len(sublayers)}"
        inner = {"gate": "wi_0", "up": "wi_1"} if model.feed_forward in GATED else {"up": "wi"}
        for ours, theirs in (inner | {"down": "wo"}).items():
            yield from linear(f"{feed}/{ours}", f"{last}.DenseReluDense.{theirs}", **plain)
        yield from norm(f"{feed}_norm", f"{last}.layer_norm", **plain)
        final = "encoder_norm" if stack == "encoder" else "final_norm"
        yield from norm(final, f"{stack}.final_layer_norm", **plain)
    if not model.tie_embeddings:
        yield Rule("unembedding/kernel", "lm_head.weight", "v d -> d v")


GATED = [ours for theirs, ours in FEED_FORWARDS.items() if theirs.startswith("gated")]


def read(config: Values) -> dict[str, Any]:
    """The dropout of all places, and the factor of the output, which version 1.1 does not have: that is known
    by its tie_word_embeddings, false, where scale_decoder_outputs does not say it.

    Raises:
      UserError: the activation is said once more, and is another.
    """
    kind = value_or(config, "feed_forward_proj", "relu")
    activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    for key, expected in (("dense_act_fn", activation), ("is_gated_act", kind.startswith("gated-"))):
        if value_or(config, key, expected) != expected:
            raise UserError(f"{key}: {config[key]!r} with feed_forward_proj {kind!r}; expected {expected!r}")
    rate = config.get("dropout_rate")
    rates = dict.fromkeys(
        ("dropout", "embedding_dropout", "attention_dropout"), 0.1 if rate is None else rate
    )
    scaled = config.get("scale_decoder_outputs")
    return rates | {
        "scale_logits": config.get("tie_word_embeddings") is not False if scaled is None else scaled
    }


def write(model: Any) -> dict[str, Any]:
    """The reverse of `read`."""
    return {"dropout_rate": model.dropout, "scale_decoder_outputs": model.scale_logits}


def copies(model: Any) -> dict[str, str]:
    """The embeddings of each stack, and the output."""
    own = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return tied_output(model) | dict.fromkeys(own, "embedding/table")


T5 = Family(
    model_type="t5",
    experiment="sequence_to_sequence",
    architecture="T5ForConditionalGeneration",
    keys=(
        Key("vocab_size", "vocab_size", 32128),
        Key("max_length", "n_positions", 512),
        Key("d_model", "d_model", 512),
        Key("head_dim", "d_kv", 64, get=lambda model: model.key_width),
        Key("d_ff", "d_ff", 2048),
        Key("num_encoder_layers", "num_layers", 6, get=lambda model: model.encoder_layers),
        Key("num_layers", "num_decoder_layers", lambda config: value_or(config, "num_layers", 6)),
        Key("num_heads", "num_heads", 8),
        Key(
            "position_buckets",
            "relative_attention_num_buckets",
            32,
            get=lambda model: model.position_buckets or 32,
        ),
        Key(
            "position_distance",
            "relative_attention_max_distance",
            128,
            get=lambda model: model.position_distance or 128,
        ),
        Key("norm_epsilon", "layer_norm_epsilon", 1e-6),
        Key("feed_forward", "feed_forward_proj", "relu", FEED_FORWARDS),
        Key("tie_embeddings", "tie_word_embeddings", True),
    ),
    fixed={"position": "t5", "share_position": True, "attention_scale": 1.0},
    silent=GENERATION | words_of("initializer_factor classifier_dropout output_past"),
    read=read,
    write=write,
    further=("dropout_rate", "scale_decoder_outputs", "dense_act_fn", "is_gated_act"),
    written=("scale_logits",),
    rules=rules,
    # A table that no layer reads.
    ignored=lambda model: (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    copies=copies,
    paired=True,
)

MT5_DEFAULTS: dict[str, Any] = {
    **{"vocab_size": 250_112, "d_ff": 1024, "num_heads": 6, "num_layers": 8},
    "num_decoder_layers": lambda config: value_or(config, "num_layers", 8),
    "feed_forward_proj": "gated-gelu",
}
"""Their keys whose defaults differ in mT5 -> the defaults."""


def read_mt5(config: Values) -> dict[str, Any]:
    """`read` with the defaults of mT5, which does not scale its output."""
    kind = {"feed_forward_proj": value_or(config, "feed_forward_proj", "gated-gelu")}
    return read({**config, **kind, "scale_decoder_outputs": False})


MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    keys=tuple(
        dataclasses.replace(key, default=MT5_DEFAULTS.get(key.theirs, key.default)) for key in T5.keys
    ),
    fixed=T5.fixed | {"scale_logits": False},  # type: ignore[operator]
    read=read_mt5,
    write=lambda model: {"dropout_rate": model.dropout},
    further=tuple(name for name in T5.further if name != "scale_decoder_outputs"),
    written=(),
)
