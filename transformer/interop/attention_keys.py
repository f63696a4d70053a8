"""The keys of config.json about rotary positions and sliding windows, which many families share."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer.errors import UserError
from transformer.interop.family import Values, positive_number, value_or
from transformer.interop.json_files import as_list

SCALINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("default", {}),
    "linear": ("linear", {}),
    "llama3": ("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "yarn": ("yarn", {"beta_fast": 32, "beta_slow": 1, "truncate": True}),
    "yarn_exact": ("yarn", {"beta_fast": 32, "beta_slow": 1, "truncate": False}),
}
"""Our `position_scaling` -> their `rope_type`, and the only values of further keys that are known here."""

ANY = ("rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings")

ROPE = ("position_base", "position_scaling", "position_factor", "position_original_length")
"""Our keys of rotary positions."""

WINDOWS = ("layers", "layer_kinds", "pattern", "pattern_size")
"""Our keys of sliding windows."""

KINDS = {"full_attention": "full", "sliding_attention": "sliding"}
"""Their types of layers -> our names of kinds."""


def read_rope(rope: Any, theta: Any, max_length: Any) -> dict[str, Any]:
    """Our keys for their `rope_parameters` or `rope_scaling`, with `theta` as the base if they name none.

    Raises:
      UserError: an unknown kind of scaling, one with an unknown key or value, or a base that is not a number
        above 0.
    """
    rope = {} if rope is None else rope
    if not isinstance(rope, dict):
        raise UserError(f"rope_parameters: {rope!r}; expected an object, {{...}}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in (kinds := [*dict.fromkeys(theirs for theirs, _ in SCALINGS.values())]):
        raise UserError(f"rope_type: {kind!r}; expected one of {', '.join(map(repr, kinds))}")
    alike = {ours: known for ours, (theirs, known) in SCALINGS.items() if theirs == kind}
    cut = [ours for ours, known in alike.items() if known.get("truncate", True) is rope.get("truncate", True)]
    scaling = next(iter(cut or alike))
    known = alike[scaling]
    for name, value in rope.items():
        expected = known.get(name, 1.0 if name == "partial_rotary_factor" else None)
        if name not in ANY and value is not None and value != expected:
            raise UserError(f"rope_parameters.{name}: {value!r} of {kind!r}; expected {expected!r}")
    keys = {"position_base": positive_number(rope, "rope_theta", theta)}
    factor = rope.get("factor")
    if scaling == "none" or factor == 1:
        return keys
    keys |= {"position_scaling": scaling, "position_factor": factor}
    if scaling != "linear":
        keys["position_original_length"] = rope.get("original_max_position_embeddings") or max_length
    return keys


def read_partial_rope(config: Values, theta: Any, fraction: str) -> dict[str, Any]:
    """`read_rope` with the part of each head that is rotated: their key `fraction`, by default 0.25.

    Raises:
      UserError: a part below 1 with yarn, whose factor there is that of the rotated part alone.
    """
    rope = dict(value_or(config, "rope_scaling", value_or(config, "rope_parameters", {})))
    part = rope.pop("partial_rotary_factor", value_or(config, fraction, 0.25))
    keys = read_rope(rope, theta, config.get("max_position_embeddings"))
    if part != 1 and rope.get("rope_type", rope.get("type")) == "yarn":
        raise UserError(f"rope_type: 'yarn' with {fraction} {part!r}; only 1 is known here with it")
    return keys | {"position_fraction": part}


def write_partial_rope(model: Any, theta: str, fraction: str) -> dict[str, Any]:
    """The reverse, as both older and newer versions read it; `theta` and `fraction` are the names of keys."""
    scaled = write_rope(model)
    if model.position_fraction != 1 and scaled["rope_type"] == "yarn":
        raise UserError("model.position_scaling: 'yarn' with position_fraction below 1; such models have 1")
    keys = {theta: model.position_base, fraction: model.position_fraction}
    return keys | ({} if scaled["rope_type"] == "default" else {"rope_scaling": scaled})


def write_rope(model: Any) -> dict[str, Any]:
    """Their `rope_parameters` without the base, for our config; raises `UserError` if they have no such, or a
    trained length that is not a whole number."""
    scaling = model.position_scaling
    if scaling not in SCALINGS:
        expected = ", ".join(map(repr, SCALINGS))
        raise UserError(f"model.position_scaling: {scaling!r}; expected one of {expected}")
    kind, known = SCALINGS[scaling]
    if scaling == "none":
        return {"rope_type": kind}
    rope = {"rope_type": kind, "factor": model.position_factor, **known}
    if scaling != "linear":
        rope["original_max_position_embeddings"] = _trained_length(model)
    return rope


def _trained_length(model: Any) -> int:
    length = model.position_original_length or model.max_length / model.position_factor
    if not math.isclose(length, round(length)):
        quotient = f"0, for max_length {model.max_length} / position_factor {model.position_factor:g}"
        raise UserError(f"model.position_original_length: {quotient}; such models have a whole number")
    return round(length)


def read_windows(
    types: Any, window: Any, num_layers: Any, of_sliding: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Our keys for their `layer_types` with a sliding `window`; `of_sliding` are further keys of such layers.

    Raises:
      UserError: an unknown type, another number of them than of layers, or no window for sliding layers.
    """
    types = as_list(types)
    for kind in types:
        if not isinstance(kind, str) or kind not in KINDS:
            raise UserError(f"layer_types: {kind!r}; expected one of {', '.join(map(repr, KINDS))}")
    if len(types) != num_layers:
        raise UserError(f"layer_types: {len(types)} of them; the model has {num_layers!r} layers")
    names = [KINDS[kind] for kind in types]
    if "sliding" in names and window is None:
        raise UserError("layer_types: 'sliding_attention', but no sliding_window that is used")
    sliding = {"pattern": "window", "pattern_size": window, **(of_sliding or {})}
    if "full" not in names:
        return sliding
    if "sliding" not in names:
        return {}
    return {"layers": period_of(names), "layer_kinds": {"sliding": sliding, "full": {}}}


def period_of(names: Sequence[str]) -> Sequence[str]:
    """The shortest beginning of a sequence that gives it when repeated."""
    lengths = range(1, len(names) + 1)
    return names[: next(m for m in lengths if all(a == b for a, b in zip(names, names[m:], strict=False)))]


def write_windows(
    model: Any, may_differ: Iterable[str] = ()
) -> tuple[list[str], int | None, Mapping[str, Any]]:
    """Their `layer_types` and the window for our config, and our config of each type.

    Raises:
      UserError: layers that differ in more than the window and `may_differ`; windows of several sizes.
    """
    for name, keys in model.layer_kinds.items():
        for key, value in keys.items():
            if key not in (*WINDOWS, *may_differ) and value != getattr(model, key):
                raise UserError(f"model.layer_kinds.{name}.{key}: {value!r}, such layers do not differ in it")
    names: Sequence[str] = model.layers or ("",)
    configs = [model.kinds[names[i % len(names)]] for i in range(model.num_layers)]
    types, windows, by_type = [], set(), {}
    for config in configs:
        if config.pattern not in ("full", "window"):
            raise UserError(f"model.pattern: {config.pattern!r}; expected 'full' or 'window'")
        types.append("full_attention" if config.pattern == "full" else "sliding_attention")
        by_type[types[-1]] = config
        windows |= {config.pattern_size} if config.pattern == "window" else set()
    if len(windows) > 1:
        raise UserError(f"model.pattern_size: windows of {sorted(windows)}; expected one size")
    return types, next(iter(windows), None), by_type
