"""The evaluations that `--mode=evaluate` has stored in a run's folder, and their section of the report."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer.errors import UserError
from transformer.json_text import parse_json
from transformer.visualization.html import Markup, folded, table, tag

KINDS = {"results": dict, "about": dict, "keys": dict, "steps": list}
"""Keys of an evaluation whose values have one kind."""


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """The evaluations in a file, [] if it is not there.

    Raises:
      UserError: not a list of objects with numbers by name in `results`.
    """
    if not path.exists():
        return []
    try:
        entries = parse_json(path.read_bytes())
    except ValueError:
        entries = None
    if not isinstance(entries, list) or not all(map(_is_evaluation, entries)):
        raise UserError(f"{path}: not a list of evaluations; move it away")
    return entries


def _is_evaluation(entry: Any) -> bool:
    if not isinstance(entry, dict) or any(
        type(entry.get(key, kind())) is not kind for key, kind in KINDS.items()
    ):
        return False
    return all(value is None or type(value) in (int, float) for value in entry.get("results", {}).values())


def evaluations(path: Path) -> Iterator[Markup]:
    """A table for each evaluation in a file. Raises as `read_evaluations`."""
    for entry in read_evaluations(path):
        about: Mapping[str, Any] = entry.get("about", {})
        results: Mapping[str, Any] = entry.get("results", {})
        at = f"step {', '.join(map(str, entry.get('steps', [])))}, {str(entry.get('date'))[:10]}"
        keys = ", ".join(f"{key}={value}" for key, value in entry.get("keys", {}).items())
        rows = [
            [tag("code", key), "none" if value is None else f"{value:.6g}", str(about.get(key, ""))]
            for key, value in results.items()
        ]
        yield tag("h3", f"{entry.get('split')} split of {entry.get('source')}")
        yield tag("p", " · ".join(filter(None, [at, keys])), class_="muted")
        yield table(["metric", "value", "interval, signature"], rows, numbers=[1])
        for key, value in about.items():
            text = str(value)
            if key not in results:
                yield folded(key, text) if "\n" in text else tag("p", tag("code", key), f": {text}")
