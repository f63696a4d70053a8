"""Keys of earlier versions in configs of old runs."""

from collections.abc import Mapping
from typing import Any

from transformer.data.sources.options import PLACE


def with_present_keys(values: dict[str, Any]) -> dict[str, Any]:
    """The config of an old run with its keys replaced by present ones, with the same effect.

    `data.evaluate_on` is dropped; an empty `data.split_by` gets the former rule. `model.attention` of a
    Transformer is now `mixer`; `full_every` and `full_position` are now `layers` of two kinds.
    """
    values = {key: dict(group) if isinstance(group, dict) else group for key, group in values.items()}
    if isinstance(values.get("data"), dict):
        values["data"].pop("evaluate_on", None)
        if not values["data"].get("split_by") and (by := former_split(values["data"])):
            values["data"]["split_by"] = by
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


def former_split(data: Mapping[str, Any]) -> str:
    """The `split_by` of the rule by which runs without the key `overlap` divided their data, where it
    differs from the present rule of an empty `split_by`; else ""."""
    kinds = {str(source).partition(":")[0] for source in data.get("sources") or [data.get("source")]}
    if data.get("validation_source"):
        return ""
    if kinds == {"aligned"} or (kinds == {"text"} and data.get("document") in ("line", "paragraph")):
        return PLACE
    read = {
        "second_field": ("text_field", "second_field"),
        "chosen_field": ("prompt_field", "chosen_field", "rejected_field"),
        "messages_field": ("messages_field",),
    }
    fields = next((names for key, names in read.items() if data.get(key)), ())
    divided = kinds <= {"jsonl", "tsv", "csv", "parquet", "hf"}
    return ",".join(str(data[name]) for name in fields if data.get(name)) if divided else ""


def keep_split(values: Mapping[str, Any], of_run: Mapping[str, Any]) -> None:
    """Divides the data of a started run, whose config is `of_run`, as they were where its version had another
    rule."""
    data, before = values.get("data"), of_run.get("data")
    if not isinstance(data, dict) or not isinstance(before, dict) or data.get("split_by"):
        return
    if before.get("split_by") and before["split_by"] == former_split(before):
        data["split_by"] = before["split_by"]
