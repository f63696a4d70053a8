"""Keys of earlier versions in configs of old runs."""

from typing import Any

RETIRED = {"evaluate_on", "attention", "full_every", "full_position"}
"""Names of keys, in any group, of configs that may need `with_present_keys`."""


def with_present_keys(values: dict[str, Any]) -> dict[str, Any]:
    """The config of an old run with its keys replaced by present ones.

    `data.evaluate_on` is dropped. `model.attention` of a Transformer is now `mixer`; `full_every` and
    `full_position` are now `layers` of two kinds.
    """
    values = {key: dict(group) if isinstance(group, dict) else group for key, group in values.items()}
    if isinstance(values.get("data"), dict):
        values["data"].pop("evaluate_on", None)
    model = values.get("model")
    if not isinstance(model, dict):
        return values
    if "num_heads" in model and "attention" in model:
        model["mixer"] = model.pop("attention")
    every, position = model.pop("full_every", 0), model.pop("full_position", "")
    if every:
        model["layers"] = ["local"] * (every - 1) + ["full"]
        model["layer_kinds"] = {name: {} for name in model["layers"]}
        model["layer_kinds"]["full"] = {"pattern": "full"} | ({"position": position} if position else {})
    return values
