"""Qwen3-Next (Qwen Team 2025): gated delta rules, gated attention in every fourth layer, and experts beside a
gated one that computes every token."""

from collections.abc import Iterator
from typing import Any

from transformer.config import from_values
from transformer.errors import UserError
from transformer.interop.attention_keys import ROPE, period_of, read_partial_rope, write_partial_rope
from transformer.interop.families import llama
from transformer.interop.families.mixtral import TRAINING
from transformer.interop.family import Key, Values, positive_number, whole_number
from transformer.interop.harmless import GENERATION
from transformer.interop.json_files import as_list
from transformer.interop.tensor_parts import heads, joined, linear, norm
from transformer.interop.tensor_rules import Rule

TYPES = {"gated_delta": "linear_attention", "gated": "full_attention"}
"""Our mixers -> their types of layers."""

KINDS = {"linear_attention": "linear", "full_attention": "full"}
"""Their types of layers -> our names of kinds."""

PROJECTIONS = ("gate", "up", "down")

LEAST = {"num_experts": 1, "experts_per_token": 2, "shared_d_ff": 1}
"""Our keys -> their least values. One expert's output is multiplied by 1 there, by a probability here."""


def names_of(model: Any) -> list[str]:
    """The kind of each layer."""
    names = model.layers or ("",)
    return [names[i % len(names)] for i in range(model.num_layers)]


def rules(model: Any) -> Iterator[Rule]:
    """The tensors."""
    yield Rule("embedding/table", "model.embed_tokens.weight", "v d -> v d")
    names = names_of(model)
    mixers = {name: model.kinds[name].mixer for name in names}
    for name, mixer in mixers.items():
        layers = tuple(i for i, kind in enumerate(names) if kind == name)
        own = len({*mixers.values()}) > 1
        of_mixer = delta_rules if mixer == "gated_delta" else attention_rules
        yield from of_mixer(model.kinds[name], f"blocks/{name}" if own else "blocks", layers)
        yield from rules_of_block(f"blocks/{name}" if own else "blocks", layers)
        if not own:
            break
    yield from norm("final_norm", "model.norm", False, "offset")
    if not model.tie_embeddings:
        yield Rule("unembedding/kernel", "lm_head.weight", "v d -> d v")


def rules_of_block(block: str, layers: tuple[int, ...]) -> Iterator[Rule]:
    """The tensors of the norms and the experts of these layers."""
    ours, theirs = f"{block}/feed_forward", "model.layers.{n}.mlp"
    yield from linear(f"{ours}/router", f"{theirs}.gate", False, layers=layers)
    yield from linear(f"{ours}/shared_gate", f"{theirs}.shared_expert_gate", False, layers=layers)
    for folder, their in (("experts", "experts.{e}"), ("shared", "shared_expert")):
        for name in PROJECTIONS:
            projection = f"{theirs}.{their}.{name}_proj"
            yield from linear(f"{ours}/{folder}/{name}", projection, False, layers=layers)
    for name, their in llama.PRE_NORMS.items():
        yield from norm(f"{block}/{name}", f"model.layers.{{n}}.{their}", False, "offset", layers=layers)


def attention_rules(kind: Any, block: str, layers: tuple[int, ...]) -> Iterator[Rule]:
    """The tensors of gated attention. The gate of a head lies behind its query."""
    ours, theirs = f"{block}/attention", "model.layers.{n}.self_attn"
    inputs = tuple(f"{ours}/{name}/kernel" for name in ("query", "gate"))
    turns: dict[str, Any] = {"in_turn": True, "turns": kind.num_heads, "layers": layers}
    yield Rule(inputs, f"{theirs}.q_proj.weight", "(h k) d -> d h k", **turns)
    for name in ("key", "value"):
        yield from heads(f"{ours}/{name}", f"{theirs}.{name[0]}_proj", False, layers=layers)
    for name in ("query", "key"):
        yield from norm(f"{ours}/{name}_norm", f"{theirs}.{name[0]}_norm", False, "offset", layers=layers)
    yield from joined(f"{ours}/output", f"{theirs}.o_proj", False, layers=layers)


def delta_rules(kind: Any, block: str, layers: tuple[int, ...]) -> Iterator[Rule]:
    """The tensors of gated delta rules. What the heads of values of one key head need lies beside it; the
    taps of a convolution are in the order of the text."""
    ours, theirs = f"{block}/attention", "model.layers.{n}.linear_attn"
    turns: dict[str, Any] = {
        "in_turn": True,
        "turns": kind.num_key_heads or kind.num_heads,
        "layers": layers,
    }
    for names, their, axes in (
        (("query", "key", "value", "gate"), "qkvz", "(h k) d -> d h k"),
        (("strength", "step"), "ba", "h d -> d h"),
    ):
        paths = tuple(f"{ours}/{name}/kernel" for name in names)
        yield Rule(paths, f"{theirs}.in_proj_{their}.weight", axes, **turns)
    taps = tuple(f"{ours}/{name}_convolution/kernel" for name in ("query", "key", "value"))
    convolved: dict[str, Any] = {"reverse": "w", "in_turn": True, "layers": layers}
    yield Rule(taps, f"{theirs}.conv1d.weight", "(h k) 1 w -> w h k", **convolved)
    yield Rule(f"{ours}/step_bias", f"{theirs}.dt_bias", layers=layers)
    yield Rule(f"{ours}/log_rate", f"{theirs}.A_log", layers=layers)
    yield from norm(f"{ours}/output_norm", f"{theirs}.norm", False, layers=layers)
    yield from joined(f"{ours}/output", f"{theirs}.out_proj", False, layers=layers)


def read(config: Values) -> dict[str, Any]:
    """Rotary positions in a part of each head, the kinds of layers, and experts.

    Raises:
      UserError: an unknown type of layers, or another number of types than of layers.
    """
    count = whole_number(config, "num_hidden_layers", 48, most=10_000)
    every = whole_number(config, "full_attention_interval", 4)
    types = as_list(config.get("layer_types")) or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(count)
    ]
    for kind in types:
        if not isinstance(kind, str) or kind not in KINDS:
            raise UserError(f"layer_types: {kind!r}; expected one of {', '.join(map(repr, KINDS))}")
    if len(types) != count:
        raise UserError(f"layer_types: {len(types)} of them; the model has {count} layers")
    names = [KINDS[kind] for kind in types]
    kinds = {"linear": read_delta(config) if "linear" in names else {}, "full": {}}
    theta = positive_number(config, "rope_theta", 10_000.0)
    return read_partial_rope(config, theta, "partial_rotary_factor") | {
        "layers": [*period_of(names)],
        "layer_kinds": {name: kinds[name] for name in dict.fromkeys(names)},
        "num_experts": whole_number(config, "num_experts", 512),
        "experts_per_token": whole_number(config, "num_experts_per_tok", 10, least=2),
        "shared_d_ff": whole_number(config, "shared_expert_intermediate_size", 512),
    }


def read_delta(config: Values) -> dict[str, Any]:
    """The keys of a layer of gated delta rules.

    Raises:
      UserError: one key head for several of values, whose parameters have no axis of heads here.
    """
    values = whole_number(config, "linear_num_value_heads", 32)
    keys = whole_number(config, "linear_num_key_heads", 16)
    if keys == 1 < values:
        have = f"with linear_num_value_heads {values}"
        raise UserError(f"linear_num_key_heads: 1 {have}; only 2 or more are known here with it")
    return {
        "mixer": "gated_delta",
        "num_heads": values,
        "num_key_heads": keys,
        "head_dim": whole_number(config, "linear_key_head_dim", 128),
        "value_dim": whole_number(config, "linear_value_head_dim", 128),
        "conv_width": whole_number(config, "linear_conv_kernel_dim", 4, least=2),
    }


def write(model: Any) -> dict[str, Any]:
    """The reverse.

    Raises:
      UserError: layers that differ in another way, or of other kinds.
    """
    names = names_of(model)
    for name in dict.fromkeys(names):
        if (mixer := model.kinds[name].mixer) not in TYPES:
            expected = " or ".join(map(repr, TYPES))
            raise UserError(f"{_key(name, 'mixer')}: {mixer!r}; expected {expected}")
    for key, least in LEAST.items():
        if (value := getattr(model, key)) < least:
            raise UserError(f"model.{key}: {value}; such models have {least} or more")
    keys = write_partial_rope(attention(model), "rope_theta", "partial_rotary_factor") | {
        "layer_types": [TYPES[model.kinds[name].mixer] for name in names],
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.experts_per_token,
        "shared_expert_intermediate_size": model.shared_d_ff,
    }
    for name, kind in model.kinds.items():
        keys |= write_delta(name, kind) if kind.mixer == "gated_delta" else {}
    _check_same(model, keys)
    return keys


def write_delta(name: str, kind: Any) -> dict[str, Any]:
    """The reverse of `read_delta`, for our config of such layers.

    Raises:
      UserError: no convolution, or one key head for several of values.
    """
    if kind.conv_width == 1:
        raise UserError(f"{_key(name, 'conv_width')}: 1, no convolution; such models have 2 taps or more")
    if (keys := kind.num_key_heads or kind.num_heads) == 1 < kind.num_heads:
        have = f"with num_heads {kind.num_heads}"
        raise UserError(f"{_key(name, 'num_key_heads')}: 1 {have}; only 2 or more can be written with it")
    return {
        "linear_num_value_heads": kind.num_heads,
        "linear_num_key_heads": keys,
        "linear_key_head_dim": kind.key_width,
        "linear_value_head_dim": kind.value_dim or kind.key_width,
        "linear_conv_kernel_dim": kind.conv_width or 4,
    }


def attention(model: Any) -> Any:
    """Our config of the layers with attention; without any that of the model."""
    return next((kind for kind in model.kinds.values() if kind.mixer == "gated"), model)


def _check_same(model: Any, written: Values) -> None:
    """Raises `UserError` for a layer that is not the same function when it is read again."""
    theirs = {key.theirs: key.write(model) for key in QWEN3_NEXT.keys} | dict(written)
    again = from_values(type(model), QWEN3_NEXT.model(theirs))
    for name, kind in zip(names_of(model), names_of(again), strict=True):
        ours, same = model.kinds[name], again.kinds[kind].function()
        for key, value in ours.function().items():
            unread = ours.mixer == "gated_delta" and key.startswith("position")
            if key not in model.harmless and not unread and same.get(key, value) != value:
                raise UserError(
                    f"{_key(name, key)}: {value!r}, 'qwen3_next' has {same[key]!r} in such layers"
                )


def _key(name: str, key: str) -> str:
    return f"model.layer_kinds.{name}.{key}" if name else f"model.{key}"


def of_attention(ours: str, theirs: str, default: Any, get: Any = None) -> Key:
    """A key of the layers with attention."""
    get = get or (lambda kind: getattr(kind, ours))
    return Key(ours, theirs, default, get=lambda model: get(attention(model)))


QWEN3_NEXT = llama.decoder(
    model_type="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    rules=rules,
    keys=(
        *(key for key in llama.SIZES if key.ours not in ("d_ff", "num_heads", "attention_dropout")),
        Key("d_ff", "moe_intermediate_size", 512),
        of_attention("num_heads", "num_attention_heads", 16),
        of_attention(
            "num_kv_heads", "num_key_value_heads", 2, lambda kind: kind.num_kv_heads or kind.num_heads
        ),
        of_attention("head_dim", "head_dim", 256, lambda kind: kind.key_width),
        of_attention("attention_dropout", "attention_dropout", 0.0),
        Key("qk_norm_epsilon", "rms_norm_eps", 1e-6, get=lambda model: model.norm_epsilon),
        llama.TIED,
    ),
    fixed={
        **{"norm": "rms_offset", "position": "rope", "feed_forward": "swiglu", "shared_gate": True},
        **{"mixer": "gated", "qk_norm": True},
    },
    assumed={
        **{"attention_bias": False, "hidden_act": "silu", "norm_topk_prob": True},
        **{"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False},
    },
    silent=GENERATION | TRAINING | {"intermediate_size"},  # of layers without experts
    read=read,
    write=write,
    further=(
        *llama.ROPES,
        *("partial_rotary_factor", "layer_types", "full_attention_interval", "num_experts"),
        *("num_experts_per_tok", "shared_expert_intermediate_size", "linear_num_value_heads"),
        *("linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
    ),
    written=(
        *ROPE,
        *("position_fraction", "layers", "layer_kinds", "mixer", "num_heads", "num_kv_heads", "head_dim"),
        *("qk_norm", "qk_norm_epsilon", "value_dim", "num_key_heads", "conv_width"),
        *("num_experts", "experts_per_token", "capacity_factor", "shared_d_ff"),
    ),
    # Layers that predict further tokens, which transformers does not read either.
    ignored=lambda model: (r"mtp\..*", r"model\.rotary_emb\.inv_freq"),
)
