"""What `--input` names: a file in the form that predict reads, or a source as a config names one."""

from pathlib import Path
from typing import Any

from transformer.errors import UserError

KINDS = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv"}
"""What a file is by the end of its name, where a config could have it so."""


def is_source(text: str, data: Any) -> bool:
    """Whether it names a source, "tsv:my.tsv", and no file."""
    kind, colon, _ = text.partition(":")
    return kind in data.kinds and (bool(colon) or not Path(text).exists())


def as_source(text: str, data: Any) -> str:
    """The source that a file is, or the one that is named.

    Raises:
      UserError: there is no such file, or none of examples one a line can be read.
    """
    if is_source(text, data):
        return text
    path, kinds = Path(text), ", ".join(data.kinds)
    if not path.is_file():
        raise UserError(f"--input: there is no file {text!r}; expected one, or a source: {kinds}")
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = KINDS.get(suffixes[-1] if suffixes else "", data.lines)
    if kind not in data.kinds:
        raise UserError(f"--input: {text}: in which form? expected KIND:{text}, of {kinds}")
    return f"{kind}:{text}"
