"""Mixtral and Qwen3-MoE: Llama with a mixture of experts in each layer."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from transformer.errors import UserError
from transformer.interop.attention_keys import ROPE, WINDOWS
from transformer.interop.families import llama
from transformer.interop.family import Key, Values, whole_number
from transformer.interop.harmless import GENERATION, words_of
from transformer.interop.tensor_parts import linear
from transformer.interop.tensor_rules import Rule

TRAINING = words_of("output_router_logits router_aux_loss_coef router_jitter_noise")
"""Their keys that have an effect in training only."""

OURS = ("experts_per_token", "capacity_factor")
"""Our keys in addition to the number of experts. A capacity limits experts in training only."""


def rules(model: Any, folder: str, projections: Mapping[str, str]) -> Iterator[Rule]:
    """The tensors. `folder` is the name of their feed-forward sublayer, and `projections` those of an expert,
    ours -> theirs."""
    yield from llama.rules(model, projections=())
    ours, theirs = "blocks/feed_forward", f"model.layers.{{n}}.{folder}"
    yield from linear(f"{ours}/router", f"{theirs}.gate", bias=False)
    for name, their in projections.items():
        yield from linear(f"{ours}/experts/{name}", f"{theirs}.experts.{{e}}.{their}", bias=False)


def chosen(config: Values) -> dict[str, Any]:
    """The number of experts of a token. Raises `UserError` if it is one: such models multiply its output with
    1, ours with its probability."""
    return {"experts_per_token": whole_number(config, "num_experts_per_tok", 2, least=2)}


def write_chosen(model: Any) -> dict[str, Any]:
    """The reverse.

    Raises:
      UserError: one expert for each token; or layers that differ.
    """
    if model.experts_per_token < 2:
        raise UserError(
            "model.experts_per_token: 1; such models compute another function with it; expected 2"
        )
    if model.layers:
        raise UserError(f"model.layers: {model.layers!r}; such models have layers of one kind")
    return {"num_experts_per_tok": model.experts_per_token}


def read_mixtral(config: Values) -> dict[str, Any]:
    """Rotary positions, a window and experts."""
    window = config.get("sliding_window")
    windows = {} if window is None else {"pattern": "window", "pattern_size": window}
    return llama.read(config, 1e6) | chosen(config) | windows


def write_mixtral(model: Any) -> dict[str, Any]:
    """The reverse."""
    return llama.write_mistral(model) | write_chosen(model)


def read_qwen(config: Values) -> dict[str, Any]:
    """Rotary positions and experts.

    Raises:
      UserError: a layer is without experts, or the weights of a token's experts are not normalised.
    """
    if not config.get("norm_topk_prob"):
        raise UserError("norm_topk_prob: False, also where it is missing; only True is known here")
    if config.get("mlp_only_layers"):
        raise UserError(f"mlp_only_layers: {config['mlp_only_layers']!r}; only layers with experts are known")
    return llama.read_qwen(config) | chosen(config)


def write_qwen(model: Any) -> dict[str, Any]:
    """The reverse."""
    dense = {"norm_topk_prob": True, "mlp_only_layers": []}
    return llama.write_qwen(model) | write_chosen(model) | dense


MIXTRAL = llama.decoder(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    rules=functools.partial(
        rules, folder="block_sparse_moe", projections={"gate": "w1", "up": "w3", "down": "w2"}
    ),
    keys=(
        *llama.SIZES,
        *llama.head_keys(8, llama.default_head_width),
        Key("num_experts", "num_local_experts", 8),
        llama.SWIGLU,
        llama.TIED,
    ),
    fixed=llama.FIXED,
    silent=GENERATION | TRAINING,
    read=read_mixtral,
    write=write_mixtral,
    further=(*llama.ROPES, "sliding_window", "num_experts_per_tok"),
    written=(*ROPE, *WINDOWS, *OURS),
)

QWEN3_MOE = llama.decoder(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    rules=functools.partial(
        rules, folder="mlp", projections={name: f"{name}_proj" for name in ("gate", "up", "down")}
    ),
    keys=(
        *(key for key in llama.SIZES if key.ours != "d_ff"),
        Key("d_ff", "moe_intermediate_size", 768),
        *llama.head_keys(4, llama.default_head_width),
        # Newer files have the name of Mixtral.
        Key("num_experts", "num_experts", lambda config: config.get("num_local_experts") or 128),
        llama.SWIGLU,
        llama.TIED,
        Key("qk_norm_epsilon", "rms_norm_eps", 1e-6),
    ),
    fixed=llama.FIXED | {"qk_norm": True},
    assumed={"attention_bias": False, "decoder_sparse_step": 1},
    silent=GENERATION | TRAINING | {"intermediate_size"},  # of layers without experts
    read=read_qwen,
    write=write_qwen,
    further=(
        *llama.QWEN_FURTHER,
        *("num_experts_per_tok", "num_local_experts", "norm_topk_prob", "mlp_only_layers"),
    ),
    written=(*ROPE, *WINDOWS, *OURS),
)
