"""Questions in the files of SQuAD."""

import functools
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.data.sources.base import check_text
from transformer.data.sources.files import Files
from transformer.data.sources.options import Options
from transformer.data.sources.record_splits import belong, key_of, keys_of, shares
from transformer.errors import UserError
from transformer.json_text import parse_json

FORM = "data > paragraphs > context and qas > question and answers > text and answer_start"

PARTS = ("article", "paragraph", "question")
"""The nested parts of a file, by which a place in it is named."""


class SquadFiles(Files):
    """`squad:GLOB`: files of SQuAD 1.1 or 2.0, one record per question, {"question", "context", "answers":
    {"text": [...], "answer_start": [...]}, "id"}; an impossible question has no answers.

    Files are parsed whole at every opening, and their records are in memory.

    Questions with the same context, or the same fields `Options.split_by`, stay in one split (see `belong`).

    Raises:
      UserError: no such file, or (when read) a file in another format.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("squad", pattern, split, options)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self._records[index]
        if not isinstance(record.get(self.field), str):
            raise UserError(f"{self.place(index)}: no text {self.field!r}; fields there: {', '.join(record)}")
        check_text(record[self.field], lambda: self.place(index), self.field)
        return record

    def place(self, index: int) -> str:
        """The file of a record and its id."""
        return f"{self._files[self._of_file[index]]}: question {self._records[index]['id']!r}"

    @property
    def _records(self) -> list[dict[str, Any]]:
        return self._found[0]

    @property
    def _of_file(self) -> list[int]:
        return self._found[1]

    @functools.cached_property
    def _found(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The records of the split, and the number of the file of each."""
        records: list[dict[str, Any]] = []
        files, counts = [], []
        for file in range(len(self._files)):
            of_file, of_paragraphs = self._read(file)
            records += of_file
            files += [file] * len(of_file)
            counts += of_paragraphs
        if not self._options.divide:
            return records, files
        names = self._options.split_by
        counts_p = np.array([1] * len(records) if names else counts, int)
        firsts_p = np.cumsum(counts_p) - counts_p
        keys = self._keys([records[first] for first in firsts_p.tolist()], names or ["context"])
        mine_n = np.repeat(belong(self._split, shares(keys)), counts_p)
        return [*itertools.compress(records, mine_n)], [*itertools.compress(files, mine_n)]

    def _keys(self, records: list[dict[str, Any]], names: Sequence[str]) -> list[bytes]:
        try:
            return keys_of([[record[name] for record in records] for name in names])
        except KeyError:  # named with the fields of the first record without it
            return [key_of(record, names, lambda: self.name) for record in records]

    def _read(self, file: int) -> tuple[list[dict[str, Any]], list[int]]:
        """The records of a file, and how many each paragraph with questions has."""
        place: list[int] = []
        text = self._decode(file, self._begin(file), self._sizes[file])
        try:  # collections of garbage in between would visit all records again and again
            return parse_json(text, lambda text: _questions(json.loads(text)["data"], place))
        except json.JSONDecodeError as error:
            raise UserError(f"{self._files[file]}:{error.lineno}: not JSON ({error.msg})") from None
        except ValueError as error:
            raise UserError(f"{self._files[file]}: not JSON ({error})") from None
        except (KeyError, TypeError, AttributeError) as error:
            problem = f"has no {error}" if isinstance(error, KeyError) else "has another form"
            parts = (f"{part} {number}" for part, number in zip(PARTS, place, strict=False))
            where = ", ".join(parts) or "the whole"
            raise UserError(f"{self._files[file]}: {where} {problem}; expected SQuAD's, {FORM}") from None


def _questions(articles: Any, place: list[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """The records of articles, and how many each paragraph with questions has; after an error `place` has the
    numbers of the `PARTS` in which it is."""
    records: list[dict[str, Any]] = []
    counts, article_number, paragraph_number, number = [], 0, 0, 0
    try:
        for article_number, article in enumerate(articles, 1):  # noqa: B007
            paragraph_number = number = 0
            for paragraph_number, paragraph in enumerate(article["paragraphs"], 1):  # noqa: B007
                number = 0
                for number, question in enumerate(paragraph["qas"], 1):
                    records.append(_record(paragraph, question, number))
                if number:
                    counts.append(number)
    except (KeyError, TypeError, AttributeError):
        place += filter(None, (article_number, paragraph_number, number))
        raise
    return records, counts


def _record(paragraph: Any, question: Any, number: int) -> dict[str, Any]:
    record = {"question": question["question"], "context": paragraph["context"]}
    if "answers" in question:  # not in files of questions to answer
        answers = question["answers"]
        texts, starts = [answer["text"] for answer in answers], [answer["answer_start"] for answer in answers]
        record["answers"] = {"text": texts, "answer_start": starts}
    record["id"] = str(question.get("id", number))
    return record
