"""Sources of text, by the part of `data.source` before the colon."""

from pathlib import Path
from typing import Any

from transformer.data.cache.disk_cache import data_folder
from transformer.data.source_names import suggest_kind
from transformer.data.sources.aligned_files import Aligned
from transformer.data.sources.base import SPLITS, Source
from transformer.data.sources.columnar import ParquetFiles, SavedDataset
from transformer.data.sources.csv_files import CommaSeparated
from transformer.data.sources.derived.span_corruption import Spans
from transformer.data.sources.embedded.docstrings import Docstrings
from transformer.data.sources.embedded.function_questions import FunctionQuestions
from transformer.data.sources.embedded.inverse_text_normalization import InverseTextNormalization
from transformer.data.sources.embedded.library_questions import LibraryQuestions
from transformer.data.sources.embedded.problems import Problems
from transformer.data.sources.embedded.snippets import Snippets
from transformer.data.sources.embedded.stdlib import StandardLibrary
from transformer.data.sources.files import TextFiles
from transformer.data.sources.line_files import Columns, JsonLines
from transformer.data.sources.options import Options
from transformer.data.sources.squad import SquadFiles
from transformer.data.sources.tfds import TfdsText
from transformer.errors import UserError

SOURCES: dict[str, Any] = {
    "stdlib": StandardLibrary,
    "text": TextFiles,
    "jsonl": JsonLines,
    "tsv": Columns,
    "csv": CommaSeparated,
    "parquet": ParquetFiles,
    "hf": SavedDataset,
    "aligned": Aligned,
    "tfds": TfdsText,
    "spans": Spans,
    "docstrings": Docstrings,
    "snippets": Snippets,
    "written_forms": InverseTextNormalization,
    "function_questions": FunctionQuestions,
    "squad": SquadFiles,
    "library_questions": LibraryQuestions,
    "problems": Problems,
}
"""Kind -> subclass of `Source`, called with the part after the colon, the split and the options."""


def open_source(name: str, split: str, *, cache_dir: str | Path = "", **options: Any) -> Source:
    """The records of one split ("train", "validation", "test") of `stdlib`, `text:/path/*.txt`,
    `jsonl:/path.jsonl` (also .gz), `tfds:name`, or another of `SOURCES`; `options` are those of `Options`.

    `field` is the field of the text, and `fields` all fields that several sources read of the same records: a
    table has a header if its first line names all of them. `document` is the unit of plain text ("file",
    "line", "paragraph"). Files have no splits: with `divide` they are split 90/5/5, otherwise every split is
    the whole. Records equal in the fields `split_by` (default: `reads`) are in one split. With `numbers` a
    field may be a number, which is read as text; with `lists` it may be a JSON list of alternative texts, of
    which the first is read; with `structures` the value may also be a JSON list or object. A record with
    something in one of the fields `unread` is refused; it has the fields `additional` too, if they are there.

    Raises:
      UserError: unknown source or split; missing, unreadable or empty files; an unknown field;
        `split_by` for a source that does not support it.
    """
    kind, _, argument = name.partition(":")
    if kind not in SOURCES:
        raise UserError(f"{name!r}: unknown source; {suggest_kind(name, SOURCES)}")
    if split not in SPLITS:
        raise UserError(f"{name}: no split {split!r}; splits there: {', '.join(SPLITS)}")
    settings = Options(data_folder(str(cache_dir)), open_other=open_source, **options)
    by = SOURCES[kind].divided_by
    if by and settings.divide and [*settings.split_by] not in ([], [by]):
        raise UserError(f"{name}: it is split by {by}; leave data.split_by empty")
    return SOURCES[kind](argument, split, settings)
