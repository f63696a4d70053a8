"""gpt-oss (OpenAI 2025): experts with a clamped gate, windows in every other layer, and attention sinks."""

from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.attention_keys import ROPE, WINDOWS, read_windows, write_windows
from transformer.interop.families import llama
from transformer.interop.families.mixtral import TRAINING, chosen
from transformer.interop.family import Key, Values, value_or, whole_number
from transformer.interop.harmless import GENERATION, words_of
from transformer.interop.tensor_parts import linear
from transformer.interop.tensor_rules import Rule

SCALED = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
"""The scaling of positions where none is given."""

REMEDY = "save it in bfloat16: from_pretrained(FOLDER, quantization_config=Mxfp4Config(dequantize=True))"
"""The way in which transformers reads the published files, of 4 bits a weight."""


def rules(model: Any) -> Iterator[Rule]:
    """The tensors. The gate and the other half of an expert alternate."""
    yield from llama.rules(model, projections=())
    ours, theirs = "blocks/feed_forward", "model.layers.{n}.mlp"
    yield Rule("blocks/attention/sinks", "model.layers.{n}.self_attn.sinks")
    yield from linear(f"{ours}/router", f"{theirs}.router")
    halves = tuple(f"{ours}/experts/{name}" for name in ("gate", "up"))
    for leaf, suffix, axes in (
        ("kernel", "", "e d (f c) -> c e d f"),
        ("bias", "_bias", "e (f c) -> c e f"),
    ):
        paths = tuple(f"{half}/{leaf}" for half in halves)
        yield Rule(paths, f"{theirs}.experts.gate_up_proj{suffix}", axes)
        yield Rule(f"{ours}/experts/down/{leaf}", f"{theirs}.experts.down_proj{suffix}")


def read(config: Values) -> dict[str, Any]:
    """Rotary positions, windows and experts.

    Raises:
      UserError: weights of fewer bits.
    """
    if isinstance(kind := config.get("quantization_config"), dict):
        method = str(kind.get("quant_method"))[:40]
        raise UserError(f"quantization_config: {method!r}; only weights without it are read; {REMEDY}")
    count = whole_number(config, "num_hidden_layers", 36, most=10_000)
    types = ["full_attention" if i % 2 else "sliding_attention" for i in range(count)]
    windows = read_windows(
        value_or(config, "layer_types", types), value_or(config, "sliding_window", 128), count
    )
    scaled = config.get("rope_scaling") or config.get("rope_parameters") or SCALED
    keys = llama.read({**config, "rope_scaling": scaled}, 150_000.0)
    return keys | windows | chosen({"num_experts_per_tok": 4, **config})


def write(model: Any) -> dict[str, Any]:
    """The reverse; raises `UserError` for layers that differ in more than windows."""
    types, window, _ = write_windows(model)
    if model.experts_per_token < 2:
        raise UserError("model.experts_per_token: 1; such models compute another function with it")
    rope = {"rope_type": "default"} | llama.write(model)
    scaled = rope.get("rope_scaling", {"rope_type": "default"})
    keys = {"layer_types": types, "sliding_window": window, "rope_theta": model.position_base}
    return keys | {"rope_scaling": scaled, "num_experts_per_tok": model.experts_per_token}


GPT_OSS = llama.decoder(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    rules=rules,
    keys=(
        *llama.sizes(rms_norm_eps=1e-5),
        *llama.head_keys(8, 64),
        Key("num_experts", "num_local_experts", 128),
        llama.TIED,
    ),
    fixed=llama.FIXED
    | {"feed_forward": "swiglu_clamped", "use_bias": True, "sinks": True, "router_bias": True},
    assumed={"attention_bias": True, "hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    # The length before the scaling of positions, and a second name.
    silent=GENERATION | TRAINING | words_of("initial_context_length experts_per_token"),
    read=read,
    write=write,
    further=(
        *llama.ROPES,
        *("layer_types", "sliding_window", "num_experts_per_tok", "quantization_config"),
    ),
    written=(*ROPE, *WINDOWS, "experts_per_token", "capacity_factor"),
)
