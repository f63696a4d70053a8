"""SmolLM3: Llama without rotary positions in every fourth layer."""

from typing import Any

from transformer.errors import UserError
from transformer.interop.attention_keys import ROPE
from transformer.interop.families import llama
from transformer.interop.family import Values
from transformer.interop.harmless import GENERATION, words_of
from transformer.interop.json_files import as_list

ROTATED = {"rope": {}, "none": {"position": "none"}}
"""Our names of the two kinds of layers -> the keys in which they differ."""


def read(config: Values) -> dict[str, Any]:
    """Rotary positions, and the layers that have them.

    Raises:
      UserError: sliding windows; a list of another length than the number of layers.
    """
    count = config["num_hidden_layers"]
    every, marks = config.get("no_rope_layer_interval") or 4, config.get("no_rope_layers")
    marks = [(i + 1) % every != 0 for i in range(count)] if marks is None else as_list(marks)
    if len(marks) != count:
        raise UserError(f"no_rope_layers: {len(marks)} of them; the model has {count!r} layers")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise UserError("use_sliding_window: True; only False is known here")
    names = tuple("rope" if mark else "none" for mark in marks)
    kinds = {name: ROTATED[name] for name in dict.fromkeys(names)}
    return llama.read(config, 2e6) | {"layers": list(names), "layer_kinds": kinds}


def write(model: Any) -> dict[str, Any]:
    """The reverse.

    Raises:
      UserError: layers that differ in more than their positions.
    """
    for name, keys in model.layer_kinds.items():
        own = {key: value for key, value in keys.items() if value != getattr(model, key)}
        for key, value in ((key, value) for key, value in own.items() if key != "position"):
            raise UserError(f"model.layer_kinds.{name}.{key}: {value!r}, such layers do not differ in it")
    names = model.layers or ("",)
    positions = [model.kinds[names[i % len(names)]].position for i in range(model.num_layers)]
    if unknown_positions := {*positions} - {"rope", "none"}:
        raise UserError(f"model.position: {min(unknown_positions)!r}; expected 'rope' or 'none'")
    marks = [int(position == "rope") for position in positions]
    types = ["full_attention"] * len(marks)
    layers = {"no_rope_layers": marks, "use_sliding_window": False, "layer_types": types}
    return (
        llama.write(model) | layers | {"pad_token_id": None}
    )  # whose default small vocabularies do not have


SMOLLM3 = llama.decoder(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    keys=(
        *llama.SIZES,
        *llama.head_keys(4, llama.default_head_width),
        llama.SWIGLU,
        llama.TIED,
    ),
    fixed={"norm": "rms"},
    assumed={"attention_bias": False, "mlp_bias": False},
    silent=GENERATION | words_of("pretraining_tp max_window_layers sliding_window"),
    read=read,
    write=write,
    further=(*llama.ROPES, "no_rope_layers", "no_rope_layer_interval", "use_sliding_window", "layer_types"),
    written=(*ROPE, "layers", "layer_kinds", "position"),
)
