"""Where text comes from: a family of `Source`s, each chosen by what stands before the colon of its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer.data.disk_cache import data_folder
from transformer.data.sources.base import SPLITS, Options, Source
from transformer.data.sources.csv_files import CommaSeparated
from transformer.data.sources.docstrings import Docstrings
from transformer.data.sources.files import TextFiles
from transformer.data.sources.function_questions import FunctionQuestions
from transformer.data.sources.inverse_text_normalization import InverseTextNormalization
from transformer.data.sources.line_files import Aligned, Columns, JsonLines
from transformer.data.sources.snippets import Snippets
from transformer.data.sources.squad import SquadFiles
from transformer.data.sources.stdlib import StandardLibrary
from transformer.data.sources.tfds import TfdsText
from transformer.errors import UserError

SOURCES: dict[str, Callable[[str, str, Options], Source]] = {
    "stdlib": StandardLibrary,
    "text": TextFiles,
    "jsonl": JsonLines,
    "tsv": Columns,
    "csv": CommaSeparated,
    "aligned": Aligned,
    "tfds": TfdsText,
    "docstrings": Docstrings,
    "snippets": Snippets,
    "written_forms": InverseTextNormalization,
    "function_questions": FunctionQuestions,
    "squad": SquadFiles,
}
"""By what stands before the colon: called with what stands behind it, the split and the options."""

DIVIDED_BY = {
    "text": "its files or the place in them",
    "aligned": "the place in it",
    "stdlib": "path",
    "docstrings": "path",
    "snippets": "text",
    "written_forms": "target",
    "function_questions": "context",
}
"""What sources are divided by that cannot be divided otherwise: a field, or something else."""


def open_source(name: str, split: str, *, cache_dir: str | Path = "", **options: Any) -> Source:
    """The records of one split ("train", "validation", "test") of `stdlib`, `text:/path/*.txt`,
    `jsonl:/path.jsonl` (also .gz), `tfds:name`, or another of `SOURCES`; `options` are those of `Options`.

    `field` is where the text is in a record, and `fields` are all that several sources read of the same
    records: a table has a header where it names all of them. `document` is what one record of plain text is
    ("file", "line", "paragraph"). Files come without splits: `divide` divides them 90/5/5, else every split
    is the whole. Records that are alike in the fields `split_by`, or without any in those that `reads` names,
    come into the same split. With `numbers` a field may also hold a number, which is read as its text; with
    `lists`, in JSON, a list of texts, `alternatives` of each other, of which the first is read.

    Raises:
      UserError: unknown source or split; missing, unreadable or empty files; an unknown field;
        `split_by` for a source that is divided by something else.
    """
    kind, _, argument = name.partition(":")
    if kind not in SOURCES:
        raise UserError(f"{name!r}: no such source; expected {', '.join(SOURCES)}, then :PATH or :NAME")
    if split not in SPLITS:
        raise UserError(f"{name}: no split {split!r}; splits there: {', '.join(SPLITS)}")
    given = Options(data_folder(str(cache_dir)), **options)
    by = DIVIDED_BY.get(kind)
    if by and given.divide and [*given.split_by] not in ([], [by]):
        raise UserError(f"{name}: it is divided by {by}; leave data.split_by empty")
    return SOURCES[kind](argument, split, given)
