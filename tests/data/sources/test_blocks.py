"""Files that are read a block at a time have the records, the splits and the errors of a reader of one record
at a time, wherever blocks start."""

import csv
import hashlib
import io
import json

import pytest

from transformer.data.sources import csv_files, line_files, open_source
from transformer.data.sources.base import SPLITS
from transformer.data.sources.record_splits import MIN_HASHED_RECORDS
from transformer.errors import UserError

COUNT = MIN_HASHED_RECORDS + 50
"""Records of which a hash of the key decides the split."""

BLOCKS = (1, 60, 1 << 16)
"""Bytes of a block: of one record, of one to three, of all."""

TALK = [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "I"}]


@pytest.fixture(params=BLOCKS)
def block(request, monkeypatch):
    for module in (line_files, csv_files):
        monkeypatch.setattr(module, "BLOCK", request.param)


def some_text(rng, letters):
    return "".join(rng.choice(letters, rng.integers(0, 9)))


def split_of(*values):
    """The split of a record with these values in the fields of its key, each by its own hash."""
    texts = [value if isinstance(value, str) else json.dumps(value, sort_keys=True) for value in values]
    key = "\0".join(text.strip() for text in texts).encode("utf-8", "surrogatepass")
    share = int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()) / 2**48
    return next(split for split, (low, high) in SPLITS.items() if low <= share < high)


def check(name, folder, splits, **options):
    """Checks that each split has the records, numbered in their text, that are in it by `splits`."""
    for split in SPLITS:
        source = open_source(name, split, cache_dir=folder / "cache", **options)
        expected = [f"n{i}" for i, each in enumerate(splits) if each == split]
        assert [source.text(i) for i in range(len(source))] == expected
        assert source.tally["read"] == len(splits)


LETTERS = [*'aé😀 ,"\\\v\x1f\x85\u2028\u3000\ufeff0', "\\n"]


def json_value(rng):
    values = [1, 1.0, None, True, 10**20, 1e-7, "1", "null", "\ud800", "\n", [], {"b": 1, "a": [2]}, TALK]
    return some_text(rng, LETTERS) if rng.random() < 0.5 else values[rng.integers(len(values))]


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "marked"])
def test_lines_of_json(tmp_path, rng, block, keyed, mark):
    values = [(json_value(rng), json_value(rng)) for _ in range(COUNT)]
    lines, splits = [], []
    for i, (first, second) in enumerate(values):
        record = {"key": first, "second.part": second} if rng.random() < 0.5 else {"second": {"part": second}}
        line = json.dumps({"text": f"n{i}", "key": first} | record, ensure_ascii=rng.random() < 0.5)
        line = line.replace("\ud800", r"\ud800")
        # A field of messages decides by what is before the answer.
        key = [[["user", "who?"]] if value is TALK else value for value in (first, second)]
        nested_null = second is None and "second" in record
        splits.append(split_of(*key) if keyed else split_of(line))
        if nested_null and keyed:  # is not a field
            line, splits[-1] = json.dumps({"text": f"n{i}", "key": 0, "second.part": 0}), split_of(0, 0)
        empty = rng.choice(["", " \t", "\v", "\r"], rng.integers(0, 2)).tolist()
        lines += [*empty, rng.choice(["", " ", "\t"]) + line + rng.choice(["", " ", "\r", "\r\r"])]
    data = (mark + "\n".join(lines) + rng.choice(["", "\n"])).encode()
    (tmp_path / "a").write_bytes(data)
    reads = ("key", "second.part") if keyed else ()
    check(f"jsonl:{tmp_path}/a", tmp_path, splits, reads=reads)


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("quoted", [True, False])
@pytest.mark.parametrize("header", [True, False])
def test_columns(tmp_path, rng, block, header, quoted, end):
    lines, splits = ["text\tkey\tsecond"] * header, []
    for i in range(COUNT):
        letters = [letter for letter in LETTERS if letter != '"']
        values = [some_text(rng, letters), some_text(rng, letters)]
        written = [*values]
        if quoted and rng.random() < 0.3:
            values[0] += '"b'
            written[0] = '"' + values[0].replace('"', '""') + '"'
        lines += ["\t".join((f"n{i}", *written)), *["", " \t"][: rng.integers(0, 2)]]
        splits.append(split_of(*values))
    (tmp_path / "a").write_bytes((end.join(lines) + end).encode())
    names = ("text", "key", "second") if header else ("source", "target", "3")
    name = f"tsv:{tmp_path}/a"
    check(name, tmp_path, splits, field=names[0], fields=names[:1], reads=names[1:])


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("separator", csv_files.SEPARATORS)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("breaks", [True, False])
def test_separated_values(tmp_path, rng, block, separator, end, breaks):
    file, splits = io.StringIO(newline=""), []
    letters = [*LETTERS, *(["\n", "\r", "\r\n\r\n"] if breaks else [])]
    writers = [
        csv.writer(file, delimiter=separator, lineterminator=end, quoting=quoting)
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    ]
    writers[0].writerow(["key", "text", "second"])
    for i in range(COUNT):
        values = [some_text(rng, letters), some_text(rng, letters)]
        if rng.random() < 0.5:  # no quotes are needed
            values = [value.strip('"\n\r,;\t ').replace('"', "") for value in values]
        file.write(end * int(rng.integers(0, 2)))
        is_quoted = rng.random() < 0.2 or "\r" in "".join(values)  # else the writer leaves it without
        writers[is_quoted].writerow([values[0], f"n{i}", values[1]])
        splits.append(split_of(*values))
    (tmp_path / "a").write_bytes(file.getvalue().encode())
    check(f"csv:{tmp_path}/a", tmp_path, splits, reads=("key", "second"))


WRONG = {
    "jsonl": {
        b'{"text": "a"': "not JSON",
        b'{"text": "a", "key": 1}, {}': "not JSON",
        b'{"text": "a", "key": "\x01"}': "not JSON",
        b"[" * 100_000: "not JSON .it is nested too deeply",
        b'{"text": "a", "key": ' + b"1" * 9999 + b"}": "not JSON .an integer has too many digits",
        b"[1]": "list; expected a JSON object",
        b'"key"': "str; expected a JSON object",
        b'{"text": "a"}': "no field 'key' to split by; fields there: text",
        b'{"text": "a", "key": "\xff"}': r"byte \d+ is not UTF-8",
    },
    "tsv": {
        b"a": "1 columns; the first line has 2",
        b"a\tb\tc": "3 columns; the first line has 2",
        b"a\t\xff": r"byte \d+ is not UTF-8",
    },
    "csv": {
        b"a": "1 values; the first line names 2",
        b"a,b,c": "3 values; the first line names 2",
        b'a,"b"c': ".*, in the record that starts here",
        b'a,"b': "a quote that is never closed, in the record that starts here",
        b"a,\xff": r"byte \d+ is not UTF-8",
    },
}


@pytest.mark.thorough(but=9)
@pytest.mark.parametrize(("kind", "wrong"), [(kind, line) for kind in WRONG for line in WRONG[kind]])
def test_the_first_line_that_is_wrong_is_named(tmp_path, rng, block, kind, wrong):
    """Also where a later one is wrong in another way, which a reader of the whole block would meet first."""
    good = {"jsonl": b'{"text": "good", "key": 1}', "tsv": b"good\tgood", "csv": b"good,good"}[kind]
    header = {"jsonl": good, "tsv": b"text\tkey", "csv": b"text,key"}[kind]
    at = int(rng.integers(1, 20))
    lines = [header, *([good] * 20)]
    lines[at] = wrong
    after = [*WRONG[kind]][rng.integers(len(WRONG[kind]))]
    lines[at + 1 :] = [*([good] * int(rng.integers(0, 3))), after]
    if wrong == b'a,"b':  # whatever follows is within the quotes
        lines[at + 1 :] = [good] * 3
    (tmp_path / "a").write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(UserError, match=rf"/a:{at + 1}: {WRONG[kind][wrong]}"):
        len(open_source(f"{kind}:{tmp_path}/a", "train", cache_dir=tmp_path, reads=("key",)))


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_groups_of_rows(tmp_path, rng, size):
    pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    rows = [
        {"key": some_text(rng, LETTERS), "number": int(rng.integers(9)), "share": float(rng.integers(9))}
        for _ in range(COUNT)
    ]
    splits = [split_of(*row.values()) for row in rows]
    rows = [row | {"text": f"n{i}"} for i, row in enumerate(rows)]
    for at in sorted(rng.integers(0, COUNT, 30).tolist(), reverse=True):
        rows.insert(at, rows[at] | {"text": None})
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a", row_group_size=size)
    check(f"parquet:{tmp_path}/a", tmp_path, splits, reads=("key", "number", "share"))


@pytest.mark.parametrize("by", ["context", "question"])
def test_questions_of_paragraphs(tmp_path, rng, by):
    name, expected, number = f"squad:{tmp_path}/*.json", {split: [] for split in SPLITS}, 0
    for file in ("a.json", "b.json"):
        paragraphs = []
        for _ in range(MIN_HASHED_RECORDS):
            context, questions = some_text(rng, LETTERS), []
            for _ in range(rng.integers(0, 4)):
                questions.append({"question": some_text(rng, LETTERS), "id": f"n{number}"})
                key = context if by == "context" else questions[-1]["question"]
                expected[split_of(key)].append(f"{tmp_path}/{file}: question 'n{number}'")
                number += 1
            paragraphs.append({"context": context, "qas": questions})
        (tmp_path / file).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    for split in SPLITS:
        options = {"field": "question", "split_by": [by] if by == "question" else []}
        source = open_source(name, split, cache_dir=tmp_path, **options)
        assert [source.place(i) for i in range(len(source))] == expected[split]
