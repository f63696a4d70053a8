"""Gemma 2 and Gemma 3 (text): norms before and after each sublayer, windows in most layers, capped scores."""

from collections.abc import Iterable, Mapping
from typing import Any

from transformer.errors import UserError
from transformer.interop.attention_keys import (
    KINDS,
    ROPE,
    WINDOWS,
    read_rope,
    read_windows,
    write_rope,
    write_windows,
)
from transformer.interop.families import llama
from transformer.interop.families.llama import ROPES, SIZES, decoder, head_keys
from transformer.interop.family import Key, Values, positive_number
from transformer.interop.harmless import GENERATION, words_of

WINDOW = 4096
"""The window where none is given; also of models of which no layer has one, as transformers makes its mask
all the same."""


def scale_of(model: Any) -> float | int:
    """s of the factor s^(-1/2) of attention scores."""
    scalar = (model.attention_scale or model.key_width**-0.5) ** -2
    return round(scalar) if abs(scalar - round(scalar)) < 1e-6 * scalar else scalar


def read(hf_config: Values, every: int, of_sliding: dict[str, Any] | None = None) -> dict[str, Any]:
    """Windows in all but each `every`-th layer, and the scale of scores."""
    types, count = hf_config.get("layer_types"), hf_config.get("num_hidden_layers")
    if types is None and type(count) is int and count <= 10_000:
        types = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    keys = read_windows(types, hf_config.get("sliding_window", WINDOW), count, of_sliding)
    return keys | {"attention_scale": positive_number(hf_config, "query_pre_attn_scalar", 256) ** -0.5}


def write(model: Any, may_differ: Iterable[str] = ()) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The reverse, and our config of each type of layer, which differ in windows and `may_differ`."""
    types, window, kinds = write_windows(model, may_differ)
    keys = {"layer_types": types, "sliding_window": window or WINDOW}
    return keys | {"query_pre_attn_scalar": scale_of(model)}, kinds


def read_gemma2(hf_config: Values) -> dict[str, Any]:
    """One base of rotary positions; every other layer has a window."""
    return llama.read(hf_config) | read(hf_config, 2)


def write_gemma2(model: Any) -> dict[str, Any]:
    """The reverse."""
    ropes = {"rope_theta": model.position_base, "rope_scaling": write_rope(model)}
    return ropes | write(model)[0]


def read_gemma3(hf_config: Values) -> dict[str, Any]:
    """Layers with a window have a smaller base; they are five of six.

    Raises:
      UserError: rotary positions that are not those of each type of layer.
    """
    ropes, length = hf_config.get("rope_parameters") or {}, hf_config.get("max_position_embeddings")
    if not isinstance(ropes, dict) or not {*ropes} <= {*KINDS}:
        raise UserError(f"rope_parameters: {ropes!r}; expected an object with {' and '.join(KINDS)}")
    full, scaled = ropes.get("full_attention"), hf_config.get("rope_scaling")
    full = full | scaled if isinstance(full, dict) and isinstance(scaled, dict) else scaled or full
    keys = read_rope(full, positive_number(hf_config, "rope_theta", 1_000_000.0), length)
    base = positive_number(hf_config, "rope_local_base_freq", 10_000.0)
    own = {"position_scaling": "none"} | read_rope(ropes.get("sliding_attention"), base, length)
    every = hf_config.get("sliding_window_pattern", hf_config.get("_sliding_window_pattern"))
    windows = read(hf_config, every if type(every) is int and every > 0 else 6, own)
    return windows if "pattern" in windows else keys | windows  # all layers have a window, or some or none


def write_gemma3(model: Any) -> dict[str, Any]:
    """The reverse, in both forms that versions of transformers read."""
    keys, kinds = write(model, ROPE)
    ropes = {
        kind: {"rope_theta": config.position_base, **write_rope(config)} for kind, config in kinds.items()
    }
    return keys | {"rope_parameters": ropes}


def cap(ours: str, theirs: str, default: float) -> Key:
    """A cap of scores or logits. Null is none; where the key is missing it is the default."""
    return Key(
        ours,
        theirs,
        lambda hf_config: 0.0 if theirs in hf_config else default,
        get=lambda model: getattr(model, ours) or None,
    )


KEYS = (
    *SIZES,
    *head_keys(4, 256),
    Key("feed_forward", "hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "geglu"}),
    Key("tie_embeddings", "tie_word_embeddings", True),
)

FIXED = {"norm": "rms_offset", "norm_placement": "sandwich", "position": "rope", "scale_embeddings": True}
FURTHER = (*ROPES, "sliding_window", "layer_types", "query_pre_attn_scalar")
WRITTEN = (*ROPE, *WINDOWS, "attention_scale")

GEMMA2 = decoder(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    keys=(
        *KEYS,
        cap("soft_cap", "attn_logit_softcapping", 50.0),
        cap("logit_soft_cap", "final_logit_softcapping", 30.0),
    ),
    fixed=FIXED,
    assumed={"attention_bias": False, "use_bidirectional_attention": False},
    silent=GENERATION | words_of("hidden_act cache_implementation"),
    read=read_gemma2,
    write=write_gemma2,
    further=FURTHER,
    written=WRITTEN,
)

GEMMA3 = decoder(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    keys=(
        *KEYS,
        cap("logit_soft_cap", "final_logit_softcapping", 0.0),
        Key("qk_norm_epsilon", "rms_norm_eps", 1e-6),
    ),
    fixed=FIXED | {"qk_norm": True},
    assumed={
        "attention_bias": False,
        "use_bidirectional_attention": False,
        "attn_logit_softcapping": None,  # transformers has the key, and does not use it
    },
    silent=GENERATION | words_of("hidden_act cache_implementation"),
    read=read_gemma3,
    write=write_gemma3,
    further=(*FURTHER, "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"),
    written=WRITTEN,
)
