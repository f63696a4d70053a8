"""Questions in the files of SQuAD."""

import functools
import json
from typing import Any

from transformer.data.sources.base import Options, belong, check_text, key_of, shares
from transformer.data.sources.files import Files
from transformer.errors import UserError
from transformer.json_text import parse_json

FORM = "data > paragraphs > context and qas > question and answers > text and answer_start"


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
        record = self._records[index][1]
        if not isinstance(record.get(self.field), str):
            raise UserError(f"{self.place(index)}: no text {self.field!r}; fields there: {', '.join(record)}")
        check_text(record[self.field], lambda: self.place(index), self.field)
        return record

    def place(self, index: int) -> str:
        """The file of a record and its id."""
        file, record = self._records[index]
        return f"{self._files[file]}: question {record['id']!r}"

    @functools.cached_property
    def _records(self) -> list[tuple[int, dict[str, Any]]]:
        paragraphs = [(file, each) for file in range(len(self._files)) for each in self._read(file)]
        names = self._options.split_by
        if names:
            paragraphs = [(file, [record]) for file, records in paragraphs for record in records]
        if self._options.divide:
            keys = (key_of(records[0], names or ["context"], lambda: self.name) for _, records in paragraphs)
            mine = belong(self._split, shares(keys))
            paragraphs = [each for each, here in zip(paragraphs, mine, strict=True) if here]
        return [(file, record) for file, records in paragraphs for record in records]

    def _read(self, file: int) -> list[list[dict[str, Any]]]:
        """The questions of each paragraph with questions."""
        found, place = [], "the whole"
        try:
            articles = parse_json(self._decode(file, self._begin(file), self._sizes[file]))["data"]
            for i, article in enumerate(articles, 1):
                place = f"article {i}"
                for j, paragraph in enumerate(article["paragraphs"], 1):
                    place, records = f"article {i}, paragraph {j}", []
                    for k, question in enumerate(paragraph["qas"], 1):
                        place = f"article {i}, paragraph {j}, question {k}"
                        records.append(_record(paragraph, question, k))
                    found.append(records)
        except json.JSONDecodeError as error:
            raise UserError(f"{self._files[file]}:{error.lineno}: not JSON ({error.msg})") from None
        except UserError:  # not UTF-8
            raise
        except ValueError as error:
            raise UserError(f"{self._files[file]}: not JSON ({error})") from None
        except (KeyError, TypeError, AttributeError) as error:
            problem = f"has no {error}" if isinstance(error, KeyError) else "has another form"
            raise UserError(f"{self._files[file]}: {place} {problem}; expected SQuAD's, {FORM}") from None
        return [records for records in found if records]


def _record(paragraph: Any, question: Any, number: int) -> dict[str, Any]:
    record = {"question": question["question"], "context": paragraph["context"]}
    if "answers" in question:  # not in files of questions to answer
        names = ("text", "answer_start")
        record["answers"] = {name: [answer[name] for answer in question["answers"]] for name in names}
    return record | {"id": str(question.get("id", number))}
