"""Gemma 2 and Gemma 3 (text): norms before and after each sublayer, windows in most layers, capped scores."""

from typing import Any

from transformer.interop.attention_keys import (
    ROPE,
    WINDOWS,
    read_rope,
    read_windows,
    write_rope,
    write_windows,
)
from transformer.interop.family import Key, Values, named, positive
from transformer.interop.llama import ROPES, SIZES, decoder, head_keys


def scale_of(model: Any) -> float | int:
    """s of the factor s^(-1/2) of attention scores."""
    scalar = (model.attention_scale or model.key_width**-0.5) ** -2
    return round(scalar) if abs(scalar - round(scalar)) < 1e-6 * scalar else scalar


def read(given: Values, theta: float, theta_of_sliding: float | None, every: int) -> dict[str, Any]:
    """Positions, windows in all but each `every`-th layer, and the scale of scores."""
    length, count = given.get("max_position_embeddings", 8192), given.get("num_hidden_layers")
    ropes = given.get("rope_parameters")
    nested = ropes if isinstance(ropes, dict) and {*ropes} & {"full_attention", "sliding_attention"} else {}
    full = nested.get("full_attention") if nested else ropes or given.get("rope_scaling")
    keys = read_rope(full, positive(given, "rope_theta", theta), length)
    own: dict[str, Any] = {}
    if theta_of_sliding is not None:
        base = positive(given, "rope_local_base_freq", theta_of_sliding)
        own = read_rope(nested.get("sliding_attention"), base, length)
        own = {"position_scaling": "none"} | own
    types = given.get("layer_types")
    if types is None and type(count) is int and count <= 10_000:
        types = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    keys |= read_windows(types, given.get("sliding_window", 4096), count, own)
    return keys | {"attention_scale": positive(given, "query_pre_attn_scalar", 256) ** -0.5}


def read_gemma2(given: Values) -> dict[str, Any]:
    """One base of rotary positions; every other layer has a window."""
    return read(given, 10_000.0, None, 2)


def write_gemma2(model: Any) -> dict[str, Any]:
    """The reverse."""
    types, window, _ = write_windows(model)
    ropes = {"rope_theta": model.position_base, "rope_scaling": write_rope(model)}
    return ropes | {"layer_types": types, "sliding_window": window, "query_pre_attn_scalar": scale_of(model)}


def read_gemma3(given: Values) -> dict[str, Any]:
    """Layers with a window have a smaller base; they are five of six."""
    every = given.get("sliding_window_pattern", given.get("_sliding_window_pattern"))
    return read(given, 1_000_000.0, 10_000.0, every if type(every) is int and every > 0 else 6)


def write_gemma3(model: Any) -> dict[str, Any]:
    """The reverse, in both forms that versions of transformers read."""
    types, window, kinds = write_windows(model, ROPE)
    ropes = {
        kind: {"rope_theta": config.position_base, **write_rope(config)} for kind, config in kinds.items()
    }
    found = {"layer_types": types, "sliding_window": window, "query_pre_attn_scalar": scale_of(model)}
    return found | {"rope_parameters": ropes}


KEYS = (
    *SIZES,
    *head_keys(4, 256),
    Key("feed_forward", "hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "geglu"}),
    Key("tie_embeddings", "tie_word_embeddings", True),
    Key("soft_cap", "attn_logit_softcapping", 0.0, get=lambda model: model.soft_cap or None),
    Key("logit_soft_cap", "final_logit_softcapping", 0.0, get=lambda model: model.logit_soft_cap or None),
)

FIXED = {"norm": "rms_offset", "norm_placement": "sandwich", "position": "rope", "scale_embeddings": True}
FURTHER = (*ROPES, "sliding_window", "layer_types", "query_pre_attn_scalar")
WRITTEN = (*ROPE, *WINDOWS, "attention_scale")

GEMMA2 = decoder(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    keys=KEYS,
    fixed=FIXED,
    assumed={"attention_bias": False, "use_bidirectional_attention": False},
    silent=named("hidden_act cache_implementation"),
    read=read_gemma2,
    write=write_gemma2,
    further=FURTHER,
    written=WRITTEN,
)

GEMMA3 = decoder(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    keys=(*KEYS, Key("qk_norm_epsilon", "rms_norm_eps", 1e-6)),
    fixed=FIXED | {"qk_norm": True},
    assumed={"attention_bias": False, "use_bidirectional_attention": False},
    silent=named("hidden_act cache_implementation"),
    read=read_gemma3,
    write=write_gemma3,
    further=(*FURTHER, "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"),
    written=WRITTEN,
)
