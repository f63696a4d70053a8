"""Checks of combinations of keys of a `StackConfig`, each where a key does not have its default."""

from collections.abc import Callable
from typing import Any

from transformer.errors import UserError
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.block import BEFORE
from transformer.layers.mixers import MIXERS, Attention
from transformer.models.stack_builder import check_layers, check_width


def _check_kernel(c: Any) -> None:
    mixer: Any = MIXERS[c.mixer]
    weighs = issubclass(mixer, Attention) and mixer.weights is not Attention.weights
    if weighs and c.kernel != "reference":
        refused = f"kernel: {c.kernel!r} with {mixer.__name__}, whose weights are not a softmax"
        raise UserError(f"{refused}; expected 'auto' or 'reference'")


def _check_groups(c: Any) -> None:
    if c.num_heads % (c.num_kv_heads or 1):
        raise UserError(f"num_kv_heads: {c.num_kv_heads} does not divide num_heads {c.num_heads}")


def _check_scaling(c: Any) -> None:
    if c.position_factor < 1 or (c.position_factor > 1) != (c.position_scaling != "none"):
        setting = f"position_factor: {c.position_factor} with position_scaling {c.position_scaling!r}"
        raise UserError(f"{setting}; expected 1 without scaling, and more than 1 with it")


def _check_experts(c: Any) -> None:
    if c.num_experts < c.experts_per_token:
        raise UserError(f"experts_per_token: {c.experts_per_token}; num_experts is {c.num_experts}")


def _check_norm(c: Any) -> None:
    if c.norm_placement not in BEFORE and not c.attention_norm:
        expected = " or ".join(map(repr, BEFORE))
        raise UserError(
            f"attention_norm: False with norm_placement {c.norm_placement!r}; expected {expected}"
        )


def _check_kinds(c: Any) -> None:
    from transformer.models.transforms.layer_kinds import check_kinds

    check_kinds(c)


def _check_widths(c: Any) -> None:
    from transformer.models.transforms.mup import check_widths

    check_widths(c)


def _check_adapters(c: Any) -> None:
    from transformer.models.transforms.lora import check_adapters

    check_adapters(c)


def _check_position(c: Any) -> None:
    if not POSITIONS[c.position].of_head_width:
        return
    if c.attention_scale:
        setting = f"attention_scale: {c.attention_scale} with position {c.position!r}"
        raise UserError(f"{setting}, which scales its own scores; expected 0")
    if not MIXERS[c.mixer].heads_of_width:
        having = [name for name, kind in MIXERS.items() if getattr(kind, "heads_of_width", False)]
        setting = f"position: {c.position!r} with mixer {c.mixer!r}"
        raise UserError(f"{setting}; only {', '.join(map(repr, having))} has it")


def _check_shared_position(c: Any) -> None:
    if not any(POSITIONS[kind.position].per_layer for kind in c.kinds.values()):
        having = ", ".join(repr(name) for name, kind in POSITIONS.items() if kind.per_layer)
        setting = f"share_position: true with position {c.position!r}"
        raise UserError(f"{setting}; only {having} learns in each layer")


CHECKS: dict[str, Callable[[Any], None]] = {
    "d_model": check_width,
    "num_heads": check_width,
    "position": _check_position,
    "num_layers": check_layers,
    "kernel": _check_kernel,
    "num_kv_heads": _check_groups,
    "position_factor": _check_scaling,
    "position_scaling": _check_scaling,
    "num_experts": _check_experts,
    "attention_norm": _check_norm,
    "layers": _check_kinds,
    "layer_kinds": _check_kinds,
    "parametrization": _check_widths,
    "lora_rank": _check_adapters,
    "share_position": _check_shared_position,
}
"""See `transformer.config.Bounded.checks`."""
