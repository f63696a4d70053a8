"""Llama 2 and 3, Mistral, Qwen2 and Qwen3: RMSNorm, SwiGLU, rotary positions, grouped heads."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.attention_keys import (
    ROPE,
    WINDOWS,
    read_rope,
    read_windows,
    write_rope,
    write_windows,
)
from transformer.interop.family import DECODERS, Family, Key, Values, positive_number
from transformer.interop.harmless import GENERATION, words_of
from transformer.interop.tensor_parts import heads, joined, linear, norm, tied_output
from transformer.interop.tensor_rules import Rule

PRE_NORMS = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}

SANDWICH_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
"""Our norms of a block -> theirs, where outputs are normalised too (Gemma 2)."""

OUTPUT_NORMS = {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}

NORMS = {"pre": PRE_NORMS, "sandwich": SANDWICH_NORMS, "output": OUTPUT_NORMS}
"""`norm_placement` -> our norms of a block -> theirs."""


def rules(model: Any, projections: Iterable[str] = ("gate", "up", "down")) -> Iterator[Rule]:
    """The tensors; `projections` are those of the feed-forward sublayer."""
    yield Rule("embedding/table", "model.embed_tokens.weight", "v d -> v d")
    ours, theirs = "blocks", "model.layers.{n}"
    scaled = functools.partial(norm, bias=False, scale="offset" if model.norm == "rms_offset" else "scale")
    for name in ("query", "key", "value"):
        projection = f"{theirs}.self_attn.{name[0]}"
        biased = model.qkv_bias or model.attention_biases
        yield from heads(f"{ours}/attention/{name}", f"{projection}_proj", biased)
        if model.qk_norm and name != "value":
            yield from scaled(f"{ours}/attention/{name}_norm", f"{projection}_norm")
    yield from joined(f"{ours}/attention/output", f"{theirs}.self_attn.o_proj", model.attention_biases)
    for name in projections:
        yield from linear(f"{ours}/feed_forward/{name}", f"{theirs}.mlp.{name}_proj", bias=False)
    for name, their in NORMS[model.norm_placement].items():
        yield from scaled(f"{ours}/{name}", f"{theirs}.{their}")
    yield from scaled("final_norm", "model.norm")
    if not model.tie_embeddings:
        yield Rule("unembedding/kernel", "lm_head.weight", "v d -> d v")


SIZES = (
    Key("vocab_size", "vocab_size"),
    Key("max_length", "max_position_embeddings"),
    Key("d_model", "hidden_size"),
    Key("num_layers", "num_hidden_layers"),
    Key("num_heads", "num_attention_heads"),
    Key("d_ff", "intermediate_size"),
    Key("norm_epsilon", "rms_norm_eps", 1e-6),
    Key("attention_dropout", "attention_dropout", 0.0),
)


def sizes(**defaults: Any) -> tuple[Key, ...]:
    """`SIZES` with other defaults, by their names."""
    return tuple(dataclasses.replace(key, default=defaults.get(key.theirs, key.default)) for key in SIZES)


def head_keys(kv_default: Any, width_default: Any) -> tuple[Key, ...]:
    """The keys of heads that share keys and values, and of their width."""
    return (
        Key("num_kv_heads", "num_key_value_heads", kv_default, get=lambda m: m.num_kv_heads or m.num_heads),
        Key("head_dim", "head_dim", width_default, get=lambda model: model.key_width),
    )


def same_as_query_heads(hf_config: Values) -> Any:
    """As many heads of keys as of queries."""
    return hf_config["num_attention_heads"]


def default_head_width(hf_config: Values) -> Any:
    """The width of a head."""
    return hf_config["hidden_size"] // hf_config["num_attention_heads"]


TIED = Key("tie_embeddings", "tie_word_embeddings", False)
SWIGLU = Key("feed_forward", "hidden_act", "silu", {"silu": "swiglu", "gelu_pytorch_tanh": "geglu"})


def read(hf_config: Values, base: float = 10_000.0) -> dict[str, Any]:
    """Rotary positions, with the default of a family for their base; of both keys for them the older one
    counts, as in transformers."""
    scaled = hf_config.get("rope_scaling") or hf_config.get("rope_parameters")
    theta = positive_number(hf_config, "rope_theta", base)
    return read_rope(scaled, theta, hf_config.get("max_position_embeddings"))


def write(model: Any) -> dict[str, Any]:
    """Rotary positions as both older and newer versions read them."""
    scaled = write_rope(model)
    keys: dict[str, Any] = {"rope_theta": model.position_base}
    return keys | ({} if scaled["rope_type"] == "default" else {"rope_scaling": scaled})


def read_mistral(hf_config: Values) -> dict[str, Any]:
    """Rotary positions, and one window for all layers."""
    window = hf_config.get("sliding_window", 4096)
    return read(hf_config) | ({} if window is None else {"pattern": "window", "pattern_size": window})


def write_mistral(model: Any) -> dict[str, Any]:
    """The reverse; raises `UserError` for layers that differ."""
    types, window, _ = write_windows(model)
    if len({*types}) > 1:
        raise UserError("model.layers: some have a window; 'mistral' has one in all layers, or in none")
    return write(model) | {"sliding_window": window}


def read_qwen(hf_config: Values) -> dict[str, Any]:
    """Rotary positions, and windows in the upper layers if at all."""
    window = hf_config.get("sliding_window", 4096) if hf_config.get("use_sliding_window") else None
    first, count, types = (
        hf_config.get("max_window_layers", 28),
        hf_config.get("num_hidden_layers"),
        hf_config.get("layer_types"),
    )
    if types is None and type(count) is int and type(first) is int and count <= 10_000:
        slides = [window is not None and i >= first for i in range(count)]
        types = ["sliding_attention" if slides_here else "full_attention" for slides_here in slides]
    return read(hf_config) | read_windows(types, window, count)


def write_qwen(model: Any) -> dict[str, Any]:
    """The reverse."""
    types, window, _ = write_windows(model)
    used = {"use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": 0}
    return write(model) | used | {"layer_types": types}


FIXED = {"norm": "rms", "position": "rope"}
ROPES = ("rope_theta", "rope_parameters", "rope_scaling")
QWEN_FURTHER = (*ROPES, "sliding_window", "use_sliding_window", "max_window_layers", "layer_types")

decoder = functools.partial(
    Family,
    experiment="language_modeling",
    also=DECODERS,
    silent=GENERATION,
    rules=rules,
    prefix="model.",
    ignored=lambda model: (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
    copies=tied_output,
)
"""A family of language models with these names of tensors."""

LLAMA = decoder(
    model_type="llama",
    architecture="LlamaForCausalLM",
    keys=(*SIZES, *head_keys(same_as_query_heads, default_head_width), SWIGLU, TIED),
    fixed=FIXED,
    assumed={"attention_bias": False, "mlp_bias": False},
    silent=GENERATION | words_of("pretraining_tp"),
    read=read,
    write=write,
    further=ROPES,
    written=ROPE,
)

MISTRAL = decoder(
    model_type="mistral",
    architecture="MistralForCausalLM",
    keys=(*SIZES, *head_keys(8, default_head_width), SWIGLU, TIED),
    fixed=FIXED,
    read=read_mistral,
    write=write_mistral,
    further=(*ROPES, "sliding_window"),
    written=(*ROPE, *WINDOWS),
)

QWEN2 = decoder(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    keys=(*SIZES, *head_keys(32, default_head_width), SWIGLU, TIED),
    fixed=FIXED | {"qkv_bias": True},
    read=read_qwen,
    write=write_qwen,
    further=QWEN_FURTHER,
    written=(*ROPE, *WINDOWS),
)

QWEN3 = decoder(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    keys=(*SIZES, *head_keys(32, 128), SWIGLU, TIED, Key("qk_norm_epsilon", "rms_norm_eps", 1e-6)),
    fixed=FIXED | {"qk_norm": True},
    assumed={"attention_bias": False},
    read=read_qwen,
    write=write_qwen,
    further=QWEN_FURTHER,
    written=(*ROPE, *WINDOWS),
)
