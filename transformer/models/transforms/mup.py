"""Maximal update parametrisation: the growth of each logical axis from the base width, and the factors in the
model that follow from it. The rules for parameters are in `transformer.training.optim.parametrization`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer.errors import UserError
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.mixers import MIXERS, Attention
from transformer.layers.stack import Stack


def growth(c: Any) -> dict[str, float]:
    """Logical axis -> its size over that of the same model at `base_width`; other axes do not grow.

    A single key/value head (multi-query attention) stays a single one; several grow as the query heads.
    Latents grow as heads do in width, or with `latent_dim` as the model.
    """
    width = c.d_model / c.base_width
    head = c.key_width / c.base_head_dim if c.base_head_dim else 1.0
    return {
        "embed": width,
        "mlp": width,
        "heads": width / head,
        "kv_heads": 1.0 if c.num_kv_heads == 1 else width / head,
        "head_dim": head,
        "latent": width if c.latent_dim else head,
    }


def score_scale(c: Any) -> float:
    """The factor of attention scores, which are then divided by k, not sqrt(k), as heads grow in width."""
    return growth(c)["head_dim"] ** -0.5


def logit_scale(c: Any) -> float:
    """The factor of logits by tied embeddings, whose entries do not shrink in wider models as those of a
    kernel do; with `scale_embeddings` they do, by its square root."""
    return growth(c)["embed"] ** (-0.5 if c.scale_embeddings else -1.0)


def with_scaled_scores(c: Any, stack: Stack) -> Stack:
    """The stack with `score_scale` in all of its attention; the same in the standard parametrization."""
    if c.parametrization == "standard":
        return stack

    def scaled(mixer: Any) -> Any:
        fields = getattr(mixer, "__dataclass_fields__", {})
        return mixer.clone(score_scale=score_scale(c), parent=None) if "score_scale" in fields else mixer

    blocks = [
        block.clone(mixer=scaled(block.mixer), cross_attention=scaled(block.cross_attention), parent=None)
        for block in stack.blocks
    ]
    return dataclasses.replace(stack, blocks=tuple(blocks))


def check_widths(c: Any) -> None:
    """Raises `UserError` for keys of muP that are missing or impossible together."""
    if not c.base_width:
        raise UserError("base_width: 0 with parametrization 'mup'; expected the d_model of tuned runs")
    if not (c.head_dim or c.base_head_dim):
        raise UserError(
            "base_head_dim: 0 with parametrization 'mup' and head_dim 0; set head_dim, if heads are more "
            "in wider models, or base_head_dim, if they are wider"
        )
    if c.base_layers and c.norm_placement != "pre":
        raise UserError(
            f"base_layers: {c.base_layers} with norm_placement {c.norm_placement!r}; scaling with "
            f"depth is defined for 'pre'"
        )
    base_heads = c.num_heads / growth(c)["heads"]
    if round(base_heads) < 1 or abs(base_heads - round(base_heads)) > 1e-6:
        raise UserError(
            f"num_heads: {c.num_heads} with d_model {c.d_model} are {base_heads:g} at base_width "
            f"{c.base_width}; expected a whole number (with base_head_dim heads grow in width)"
        )
    for kind in c.kinds.values():
        _check_heads(kind, c.key_width)


def _check_heads(c: Any, key_width: int) -> None:
    mixer = MIXERS[c.mixer]
    if issubclass(mixer, Attention) and "head_dim" not in mixer.__dataclass_fields__:
        problem = "with parametrization 'mup': its head is as wide as the model"
        raise UserError(f"mixer: {c.mixer!r} {problem}")
    if not c.base_head_dim:
        return
    scaled = f"with base_head_dim {c.base_head_dim}"
    if c.key_width != key_width:
        raise UserError(f"head_dim: {c.key_width} and {key_width} in layers of a model {scaled}")
    if POSITIONS[c.position].of_head_width:
        raise UserError(
            f"position: {c.position!r} {scaled}: it scales its own scores; expected head_dim > 0 and "
            f"base_head_dim 0, so that heads grow in number"
        )


def widened(model: Mapping[str, Any], width: int) -> dict[str, Any]:
    """The keys of `model`, values of a `StackConfig`, that change in the same model of another `d_model`: by
    the rules of `growth`.

    Raises:
      UserError: a size would not be a whole number.
    """
    ratio, more_heads = width / model["d_model"], bool(model["head_dim"]) and not model["base_head_dim"]
    growing = {"d_model", "d_ff", "latent_dim", "num_heads" if more_heads else "head_dim"}
    shared = ("num_kv_heads", "num_key_heads")
    growing |= {key for key in shared if more_heads and model[key] > 1}
    growing |= set() if more_heads else {"value_dim"}

    def grown(keys: Mapping[str, Any]) -> dict[str, Any]:
        factors = {}
        for key in growing & keys.keys():
            if (size := keys[key] * ratio) != round(size):
                raise UserError(f"{key}: {keys[key]} at d_model {model['d_model']} is {size:g} at {width}")
            factors[key] = round(size)
        return factors

    kinds = {name: {**keys, **grown(keys)} for name, keys in model["layer_kinds"].items()}
    return grown(model) | {"layer_kinds": kinds}
