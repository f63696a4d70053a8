import gzip
from pathlib import Path

import pytest

from transformer.data.sources import open_source
from transformer.data.sources.embedded.inverse_text_normalization import SIZES, spell
from transformer.errors import UserError


def both(
    name: str, folder: Path, split: str = "train", fields=("source", "target"), **options
) -> list[tuple]:
    first, second = (
        open_source(name, split, field=f, fields=fields, cache_dir=folder, **options) for f in fields
    )
    assert len(first) == len(second) and first.identity != second.identity
    return [
        ("".join(first.pieces(i)), "".join(second.pieces(i)), first[i], second[i]) for i in range(len(first))
    ]


def test_columns_without_a_header(tmp_path):
    (tmp_path / "a.tsv").write_text('one\teins\n"two"\tzwei\n\nthrée\tdrei\r\n', encoding="utf-8")
    rows = both(f"tsv:{tmp_path}/a.tsv", tmp_path, divide=False)
    assert [row[:2] for row in rows] == [("one", "eins"), ('"two"', "zwei"), ("thrée", "drei")]
    (tmp_path / "a.tsv").write_text("one\teins\tun\ntwo\tzwei\tdeux\n")
    assert both(f"tsv:{tmp_path}/a.tsv", tmp_path, divide=False)[1][2]["3"] == "deux"


def test_columns_by_the_names_of_a_header(tmp_path):
    (tmp_path / "a.tsv").write_text("id\tde\ten\n1\teins\tone\n2\tzwei\ttwo\n")
    rows = both(f"tsv:{tmp_path}/a.tsv", tmp_path, divide=False, fields=("en", "de"))
    assert [row[:2] for row in rows] == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize("line", ["two", "two\tzwei\tdrei", "two\tzwei\t"])
@pytest.mark.parametrize("header", ["source\ttarget\n", ""], ids=["header", "none"])
@pytest.mark.parametrize("divide", [True, False])
def test_a_line_of_more_or_fewer_columns_is_refused_with_its_place(tmp_path, line, header, divide):
    """A tab in a text makes its second half the label, or a translation of the first half."""
    (tmp_path / "a.tsv").write_text(f"{header}one\teins\n{line}\n")
    said = rf"a.tsv:{3 if header else 2}: {line.count(chr(9)) + 1} columns; the first line has 2"
    with pytest.raises(UserError, match=said):
        both(f"tsv:{tmp_path}/a.tsv", tmp_path, divide=divide, reads=("source",))


def test_a_missing_column_is_named_with_its_line(tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\nzwei\tdeux\n")
    with pytest.raises(UserError, match=r"a.tsv:1: no field 'fr'; fields there: source, target"):
        both(f"tsv:{tmp_path}/a.tsv", tmp_path, divide=False, fields=("source", "fr"))


def test_aligned_files_keep_every_line_at_its_place(tmp_path, rng):
    lines = [f"line {i}" if rng.random() < 0.8 else "" for i in range(50)]
    other = [f"Zeile {i} ä" if rng.random() < 0.8 else "" for i in range(50)]
    (tmp_path / "a.en").write_text("\n".join(lines) + "\n")
    with gzip.open(tmp_path / "a.de.gz", "wb") as file:
        file.write("\n".join(other).encode() + (b"" if other[-1] else b"\n"))
    name = f"aligned:{tmp_path}/a.en,{tmp_path}/a.de.gz"
    assert [row[:2] for row in both(name, tmp_path, divide=False)] == list(zip(lines, other, strict=True))
    parts = [row[:2] for split in ("train", "validation", "test") for row in both(name, tmp_path, split)]
    assert parts == list(zip(lines, other, strict=True))


def test_unequal_files_are_refused_with_their_counts(tmp_path):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("1\n2")
    with pytest.raises(UserError, match=r"/a has 3 lines and \S+/b has 2 lines; they must have as many"):
        len(open_source(f"aligned:{tmp_path}/a,{tmp_path}/b", "train", field="source", cache_dir=tmp_path))


def test_bad_bytes_are_named_with_file_and_line(tmp_path):
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"1\n\xff\n")
    with pytest.raises(UserError, match=r"b:2: byte 2 is not UTF-8"):
        both(f"aligned:{tmp_path}/a,{tmp_path}/b", tmp_path, divide=False)


@pytest.mark.parametrize("argument", ["a", "a,b,c", "", "{tmp}/no,{tmp}/no"])
def test_aligned_wants_two_files(tmp_path, argument):
    with pytest.raises(UserError, match=r"^aligned:"):
        name = "aligned:" + argument.replace("{tmp}", str(tmp_path))
        open_source(name, "train", field="source", cache_dir=tmp_path)


@pytest.mark.thorough
def test_written_forms_share_no_answer_between_splits(tmp_path):
    answers = {}
    for split in SIZES:
        answers[split] = {row[1] for row in both("written_forms", tmp_path, split)[:1000]}
    assert all(len(found) > 800 for found in answers.values())
    assert not answers["train"] & answers["validation"] and not answers["validation"] & answers["test"]
    assert not answers["train"] & answers["test"]


def test_spelling():
    said = {0: "zero", 19: "nineteen", 40: "forty", 99: "ninety-nine", 100: "one hundred"}
    said |= {342: "three hundred and forty-two", 1_000_005: "one million and five"}
    said |= {12_345_678: "twelve million three hundred and forty-five thousand six hundred and seventy-eight"}
    assert {n: spell(n) for n in said} == said
    assert len({spell(n) for n in range(5000)}) == 5000


HEADERS = {
    "source\ttarget": None,  # as it is asked for
    "target\tsource": None,
    "id\tsource\ttarget": None,
    "eins\tzwei": None,  # data
    "source\tdeutsch": "a.tsv:1 looks like a header, but has no column 'target'; .*: source, deutsch",
    "english\ttarget": "a.tsv:1 looks like a header, but has no column 'source'",
    "Source\tTarget": "a.tsv:1 looks like a header, but has no column 'source'; .*: Source, Target",
    '"source"\t"target"': "a.tsv:1 looks like a header, but has no column 'source'",
    "source\ttarget\tsource": "a.tsv:1 names 'source' twice",
}


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "marked"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("header", HEADERS)
def test_a_table_has_a_header_for_all_its_fields_or_for_none(tmp_path, rng, header, end, mark):
    """Whatever the number of lines: a header that one side skips and the other does not shifts every pair."""
    count = int(rng.integers(2, 400))
    names = header.split("\t")
    first, second = (names.index(n) if n in names else i for i, n in enumerate(("source", "target")))
    rows = [[f"x{i}"] * len(names) for i in range(count)]
    for i, row in enumerate(rows):
        row[first], row[second] = f"s{i}", f"t{i}"
    lines = [header, *("\t".join(row) for row in rows)]
    (tmp_path / "a.tsv").write_bytes((mark + "".join(line + end for line in lines)).encode())
    fields = ("source", "target")
    if HEADERS[header]:
        with pytest.raises(UserError, match=HEADERS[header]):
            both(f"tsv:{tmp_path}/a.tsv", tmp_path, fields=fields)
        return
    found = []
    for split in ("train", "validation", "test"):
        found += both(f"tsv:{tmp_path}/a.tsv", tmp_path, split, fields)
    expected = [(f"s{i}", f"t{i}") for i in range(count)]
    expected += [("eins", "zwei")] if header == "eins\tzwei" else []
    assert sorted(row[:2] for row in found) == sorted(expected)


def test_of_several_tables_each_has_its_header_where_it_matters(tmp_path):
    (tmp_path / "a.tsv").write_text("target\tsource\neins\tone\n")
    (tmp_path / "b.tsv").write_text("source\ttarget\ntwo\tzwei\n")
    (tmp_path / "empty.tsv").write_text("")
    rows = both(f"tsv:{tmp_path}/*.tsv", tmp_path, divide=False)
    assert [row[:2] for row in rows] == [("one", "eins"), ("two", "zwei")]
    (tmp_path / "c.tsv").write_text("three\tdrei\n")
    with pytest.raises(
        UserError, match=r"c.tsv:1 is not a header, but \S+a.tsv has one, with 'source' in column 2"
    ):
        both(f"tsv:{tmp_path}/*.tsv", tmp_path, divide=False)
    rows = both(f"tsv:{tmp_path}/[bc].tsv", tmp_path, divide=False)
    assert [row[:2] for row in rows] == [("two", "zwei"), ("three", "drei")]


def test_byte_order_marks_are_no_text(tmp_path):
    (tmp_path / "a").write_text("\ufeffone\r\ntwo\r\n", newline="")
    (tmp_path / "b").write_text("eins\nzwei\n")
    (tmp_path / "a.jsonl").write_text('\ufeff{"source": "one", "target": "eins"}\r\n', newline="")
    rows = both(f"aligned:{tmp_path}/a,{tmp_path}/b", tmp_path, divide=False)
    assert [row[:2] for row in rows] == [("one", "eins"), ("two", "zwei")]
    assert both(f"jsonl:{tmp_path}/a.jsonl", tmp_path, divide=False)[0][:2] == ("one", "eins")
