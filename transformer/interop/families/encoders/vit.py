"""ViT (Dosovitskiy et al. 2021) with a head for classes."""

import functools
from collections.abc import Iterator
from typing import Any

from transformer.errors import UserError
from transformer.interop.families.encoders.bert import GELU
from transformer.interop.family import Family, Key, Values, value_or
from transformer.interop.json_files import as_list
from transformer.interop.tensor_parts import heads, joined, linear, norm
from transformer.interop.tensor_rules import Rule


def rules(model: Any) -> Iterator[Rule]:
    """The tensors. Patches are projected by a convolution, in whose kernel channels are before pixels."""
    sides = {"i": model.patch_size, "j": model.patch_size}
    positions = {"p": model.max_length}
    patches = "vit.embeddings.patch_embeddings.projection"
    yield Rule("embedding/kernel", f"{patches}.weight", "d c i j -> (i j c) d", sides)
    yield Rule("embedding/bias", f"{patches}.bias")
    yield Rule("cls", "vit.embeddings.cls_token", "1 1 d -> d")
    yield Rule("trunk/position/table", "vit.embeddings.position_embeddings", "1 p d -> p d", positions)
    ours, theirs = "trunk/blocks", "vit.encoder.layer.{n}"
    for name in ("query", "key", "value"):
        yield from heads(f"{ours}/attention/{name}", f"{theirs}.attention.attention.{name}")
    yield from joined(f"{ours}/attention/output", f"{theirs}.attention.output.dense")
    yield from norm(f"{ours}/attention_norm", f"{theirs}.layernorm_before")
    yield from linear(f"{ours}/feed_forward/up", f"{theirs}.intermediate.dense")
    yield from linear(f"{ours}/feed_forward/down", f"{theirs}.output.dense")
    yield from norm(f"{ours}/feed_forward_norm", f"{theirs}.layernorm_after")
    yield from norm("trunk/final_norm", "vit.layernorm")


def classifier(model: Any) -> Iterator[Rule]:
    """The tensors, with those of the head."""
    yield from rules(model)
    yield from linear("head/classes", "classifier")


def side(config: Values, key: str, default: int) -> int:
    """A size in pixels, the same in both directions.

    Raises:
      UserError: it is a different one.
    """
    size = value_or(config, key, default)
    sizes = size if isinstance(size, list) else [size, size]
    if len(sizes) != 2 or type(sizes[0]) is not int or sizes[0] != sizes[1] or sizes[0] < 1:
        raise UserError(f"{key}: {size!r}; only squares are known here")
    return sizes[0]


def read(config: Values) -> dict[str, Any]:
    """Our keys of sizes."""
    size = side(config, "patch_size", 16)
    return {
        "patch_size": size,
        "max_length": (side(config, "image_size", 224) // size) ** 2 + 1,
        "embedding_dropout": value_or(config, "hidden_dropout_prob", 0.0),
    }


def write(model: Any) -> dict[str, Any]:
    """Their keys of sizes."""
    return {
        "patch_size": model.patch_size,
        "image_size": round((model.max_length - 1) ** 0.5) * model.patch_size,
    }


def data(config: Values) -> dict[str, Any]:
    """Our keys of images."""
    channels = value_or(config, "num_channels", 3)
    if channels not in (1, 3):
        raise UserError(f"num_channels: {channels!r}; expected 1 or 3")
    return {"image_size": side(config, "image_size", 224), "channels": channels}


def write_data(config: Any) -> dict[str, Any]:
    """Their keys of images."""
    return {"image_size": config.image_size, "num_channels": config.channels}


def pixels(config: Values) -> dict[str, Any]:
    """Our keys of pixels, from preprocessor_config.json; those of transformers without it.

    Raises:
      UserError: pixels are scaled in a way that cannot be expressed here.
    """
    numbers = []
    for key, default in (("image_mean", 0.5), ("image_std", 0.5)):
        value = value_or(config, key, default)
        values = as_list(value) or [default]
        if not all(type(value) in (int, float) and value == values[0] for value in values):
            raise UserError(f"{key}: {value!r}; expected one number for all channels")
        numbers.append(values[0])
    factor = value_or(config, "rescale_factor", 1 / 255)
    if not value_or(config, "do_rescale", True) or not isinstance(factor, float) or not 0 < factor < 1:
        raise UserError(f"do_rescale, rescale_factor: {factor!r}; expected true, and between 0 and 1")
    mean, deviation = numbers if value_or(config, "do_normalize", True) else (0.0, 1.0)
    return {"pixel_mean": mean / factor, "pixel_scale": deviation / factor}


def write_pixels(model: Any, config: Any) -> dict[str, Any]:
    """The preprocessor_config.json of a model and its data."""
    size = {"height": config.image_size, "width": config.image_size}
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [model.pixel_mean / 255] * config.channels,
        "image_std": [model.pixel_scale / 255] * config.channels,
        "do_resize": True,
        "size": size,
        "resample": 3,  # bicubic
    }


_family = functools.partial(
    Family,
    model_type="vit",
    experiment="vision",
    labelled=True,
    keys=(
        Key("d_model", "hidden_size", 768),
        Key("num_layers", "num_hidden_layers", 12),
        Key("num_heads", "num_attention_heads", 12),
        Key("d_ff", "intermediate_size", 3072),
        Key("feed_forward", "hidden_act", "gelu", GELU),
        Key("norm_epsilon", "layer_norm_eps", 1e-12),
        Key("dropout", "hidden_dropout_prob", 0.0),
        Key("attention_dropout", "attention_probs_dropout_prob", 0.0),
    ),
    fixed={"norm": "layer", "position": "learned", "use_bias": True, "pooling": "cls"},
    assumed={"qkv_bias": True},
    silent=frozenset(["encoder_stride", "pooler_output_size", "pooler_act"]),
    further=("image_size", "patch_size", "num_channels"),
    written=("patch_size", "max_length", "embedding_dropout", "pixel_mean", "pixel_scale", "head_dropout"),
    read=read,
    write=write,
    data=data,
    write_data=write_data,
    pixels=pixels,
    write_pixels=write_pixels,
    prefix="vit.",
)

VIT = _family(architecture="ViTForImageClassification", rules=classifier)
VIT_BARE = _family(
    architecture="ViTModel",
    rules=rules,
    heads=("head",),
    alone="vision",
    ignored=lambda model: (r"vit\.pooler\..*",),
)
