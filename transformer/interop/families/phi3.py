"""Phi-3 and Phi-4 (Abdin et al. 2024): Llama with fused projections."""

from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.attention_keys import WINDOWS
from transformer.interop.families import llama
from transformer.interop.family import Key, Values, positive_number, value_or
from transformer.interop.harmless import GENERATION, words_of
from transformer.interop.tensor_parts import affine, joined, linear, norm
from transformer.interop.tensor_rules import Rule


def rules(model: Any) -> Iterator[Rule]:
    """The tensors. Queries, keys and values, of which there may be fewer, are rows of one."""
    yield Rule("embedding/table", "model.embed_tokens.weight", "v d -> v d")
    ours, theirs = "blocks", "model.layers.{n}"
    inputs = tuple(f"{ours}/attention/{name}" for name in ("query", "key", "value"))
    fused = f"{theirs}.self_attn.qkv_proj"
    yield from affine(inputs, fused, "(h k) d -> d h k", None, in_turn=True)
    yield from joined(f"{ours}/attention/output", f"{theirs}.self_attn.o_proj", bias=False)
    gated = (f"{ours}/feed_forward/gate", f"{ours}/feed_forward/up")
    yield from affine(gated, f"{theirs}.mlp.gate_up_proj", "(c f) d -> c d f", None)
    yield from linear(f"{ours}/feed_forward/down", f"{theirs}.mlp.down_proj", bias=False)
    for name, their in llama.PRE_NORMS.items():
        yield from norm(f"{ours}/{name}", f"{theirs}.{their}", bias=False)
    yield from norm("final_norm", "model.norm", bias=False)
    if not model.tie_embeddings:
        yield Rule("unembedding/kernel", "lm_head.weight", "v d -> d v")


def read(config: Values) -> dict[str, Any]:
    """Rotary positions, maybe in a part of each head, and one window for all layers.

    Raises:
      UserError: longrope, whose frequencies change with the length of a text.
    """
    rope = value_or(config, "rope_scaling", value_or(config, "rope_parameters", {}))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"rope_scaling.type: {kind!r}; only positions without a scaling are known here")
    fraction = value_or(config, "partial_rotary_factor", value_or(rope, "partial_rotary_factor", 1.0))
    window = config.get("sliding_window")
    windows = {} if window is None else {"pattern": "window", "pattern_size": window}
    base = positive_number(rope, "rope_theta", positive_number(config, "rope_theta", 10_000.0))
    return windows | {"position_base": base, "position_fraction": fraction}


def write(model: Any) -> dict[str, Any]:
    """The reverse; raises `UserError` for layers that differ."""
    window = llama.write_mistral(model)["sliding_window"]
    keys = {"rope_theta": model.position_base, "partial_rotary_factor": model.position_fraction}
    # The default of pad_token_id is none that small vocabularies have.
    return keys | {"sliding_window": window, "pad_token_id": None}


PHI3 = llama.decoder(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    rules=rules,
    keys=(
        *llama.sizes(rms_norm_eps=1e-5),
        *llama.head_keys(llama.same_as_query_heads, llama.default_head_width),
        Key("dropout", "resid_pdrop", 0.0),
        Key("embedding_dropout", "embd_pdrop", 0.0),
        llama.SWIGLU,
        llama.TIED,
    ),
    fixed=llama.FIXED,
    assumed={"attention_bias": False},
    # Of longrope alone; and classes of its own, which are those of transformers.
    silent=GENERATION | words_of("original_max_position_embeddings auto_map"),
    read=read,
    write=write,
    further=(*llama.ROPES, "partial_rotary_factor", "sliding_window"),
    written=(*WINDOWS, "position_base", "position_fraction"),
)
