"""Suggestions for unknown sources, such as a path without its kind."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

KIND_OF = {".jsonl": "jsonl", ".json": "jsonl", ".tsv": "tsv", ".csv": "csv", ".parquet": "parquet"}
"""Suffix of a file -> the kind of source that reads it; other files are text."""

SAVED = ("dataset_info.json", "dataset_dict.json")
"""The files that mark a folder as a data set saved by Hugging Face datasets."""


def suggest_kind(name: str, kinds: Iterable[str]) -> str:
    """The end of an error on a source, `name`, of none of these kinds: for a path that exists the source that
    reads it, for a misspelt kind the right one, otherwise all kinds."""
    kinds, path = tuple(kinds), Path(name).expanduser()
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    likely, place = KIND_OF.get(suffix, "text"), name
    if path.is_dir():
        is_saved = any((path / file).is_file() for file in SAVED)
        likely = "folder" if "folder" in kinds else "hf" if is_saved else "text"
        place = f"{name}/*" if likely == "text" else name
    if name and path.exists() and likely in kinds:
        return f"did you mean '{likely}:{place}'?"
    kind, colon, rest = name.partition(":")
    if near := get_close_matches(kind, kinds, n=1):
        return f"did you mean '{near[0]}{colon}{rest}'?"
    return f"expected one of {', '.join(kinds)}, then :PATH or :NAME"
