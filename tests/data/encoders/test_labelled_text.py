import csv
import dataclasses
import json
import re

import numpy as np
import pytest

from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.labels import remarks
from transformer.data.loader import DataLoader
from transformer.errors import UserError

NAMES = ["bad", "good", "so so"]


def write(path, rng, count=120, longest=20, pairs=False):
    letters = np.array(list("abcdefgh é"))
    texts = [
        tuple("x" + "".join(rng.choice(letters, rng.integers(0, longest))) for _ in range(1 + pairs))
        for _ in range(count)
    ]
    labels = [NAMES[i] for i in rng.integers(0, 3, count)]
    columns = ["text", "second", "label"] if pairs else ["text", "label"]
    lines = [
        "\t".join(columns),
        *("\t".join([*text, label]) for text, label in zip(texts, labels, strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [(*text, label) for text, label in zip(texts, labels, strict=True)]


def data(path, kind="tsv", **changes) -> LabelledData:
    source = f"{kind}:{path}"
    keys = {"source": source, "validation_source": source, "tokenizer": "bytes", "sequence_length": 32}
    return LabelledData(LabelledDataConfig(**keys | {"cache_dir": str(path.parent)} | changes))


def unpacked(made, rows):
    """Every text that the rows hold with its label, read back through segments alone."""
    special_tokens, found = made.special_tokens, []
    for row in range(len(rows)):
        batch = {name: values[0] for name, values in rows.batch(np.array([row])).items()}
        assert not batch["tokens"][batch["segments"] == 0].any()
        count = batch["segments"].max()
        np.testing.assert_array_equal(batch["weights"], np.arange(len(batch["weights"])) < count)
        for k in range(1, count + 1):
            here = batch["segments"] == k
            tokens, types = batch["tokens"][here], batch["types"][here]
            np.testing.assert_array_equal(batch["positions"][here], np.arange(here.sum()))
            assert tokens[0] == special_tokens.cls and tokens[-1] == special_tokens.sep
            parts = [bytes(tokens[types == i].tolist()[i == 0 : -1]).decode() for i in range(types.max() + 1)]
            found.append((*parts, made.labels[batch["labels"][k - 1]]))
    return found


@pytest.mark.parametrize("pairs", [False, True])
def test_every_text_is_in_one_row_whole_with_its_label(tmp_path, rng, pairs):
    written = write(tmp_path / "a.tsv", rng, longest=12, pairs=pairs)
    made = data(tmp_path / "a.tsv", second_field="second" if pairs else "")
    rows = made.rows("train")
    assert made.labels == sorted(NAMES)
    assert sorted(unpacked(made, rows)) == sorted(written)
    filled = (rows.batch(np.arange(len(rows)))["segments"] > 0).mean()
    assert rows.padding == pytest.approx(1 - filled)
    counts = made.label_counts("train")
    assert [sum(row[-1] == name for row in written) for name in made.labels] == counts.tolist()


def test_what_is_too_long_is_cut_left_out_or_refused(tmp_path, rng):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\nshort\tgood\n" + "a" * 100_000 + "\tbad\n\tgood\n   \tbad\n")
    rows = data(path).rows("train")
    assert len(rows.packed) == 3 and rows.tally == {"packed": 3, "empty": 1, "truncated": 1}
    rows = data(path, too_long="skip").rows("train")
    assert len(rows.packed) == 2 and rows.tally == {"packed": 2, "empty": 1, "too long": 1}
    with pytest.raises(UserError, match=r"^data.too_long: text 2 has 100002 tokens.*sequence_length is 32$"):
        data(path, too_long="refuse").rows("train")


def test_numbers_are_labels_too_in_their_order(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [{"text": f"text {i}", "label": i % 11} for i in range(100)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    made = data(path, "jsonl")
    assert made.labels == [str(i) for i in range(11)]
    assert sorted(unpacked(made, made.rows("train"))) == sorted((r["text"], str(r["label"])) for r in lines)


def test_equal_numbers_are_labels_in_an_order_of_their_own(tmp_path):
    """Not in that of a set, which another process with the same data would have otherwise."""
    names = [str(2 + i % 2) for i in range(40)] + ["1".zfill(i) for i in range(1, 9)]
    ones = ["1".zfill(i) for i in range(8, 0, -1)]
    assert labelled_as(tmp_path / "a.tsv", names).labels == [*ones, "2", "3"]


def test_a_spreadsheet_s_quotes_hold_commas_and_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"one, ""two""\nthree",good\nfour\u2028five,bad\n\n', encoding="utf-8")
    made = data(path, "csv")
    assert list(made.texts("train")) == [(('one, "two"\nthree',), "good"), (("four\u2028five",), "bad")]
    path.write_text("text,label\none,good\ntwo\n")
    with pytest.raises(UserError, match=r"a\.csv:3: 1 values; the first line names 2$"):
        data(path, "csv")
    path.write_text("words,label\none,good\ntwo,bad\n")
    with pytest.raises(UserError, match=r"a\.csv:1: no column 'text'; columns there: words, label$"):
        data(path, "csv").rows("train")
    path.write_text('text,label\n"one\n",good\n"two,bad\nthree,good\n')
    with pytest.raises(UserError, match=r"a\.csv:4: a quote that is never closed, in the record that"):
        data(path, "csv")
    path.write_text('text,"label\none,good\n')
    with pytest.raises(UserError, match=r"a\.csv:1: a quote that is never closed"):
        data(path, "csv")
    path.write_bytes(b"text,label\none,good\ntw\xffo,bad\n")
    with pytest.raises(UserError, match=r"a\.csv:3: byte 22 is not UTF-8"):
        data(path, "csv")


def test_a_value_of_a_table_is_as_long_as_it_is(tmp_path):
    before = csv.field_size_limit(131_072)  # as a process starts
    try:
        path, text = tmp_path / "a.csv", "a, b\n" * 100_000
        path.write_text(f'text,label\n"{text}",good\nshort,bad\n')
        assert list(data(path, "csv").texts("train")) == [((text,), "good"), (("short",), "bad")]
        csv.field_size_limit(1 << 40)  # what another library has set is not lowered
        data(tmp_path / "a.csv", "csv", text_field="label", label_field="text")
        assert csv.field_size_limit() == 1 << 40
    finally:
        csv.field_size_limit(before)


def test_a_row_of_a_table_is_named_by_the_line_at_which_it_begins(tmp_path):
    rows = [f'"text {i},\n ""too""",{"" if i == 26 else "ab"[i % 2]}' for i in range(30)]
    (tmp_path / "b.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "a.csv").write_text("text,label\none,a\ntwo,b\n")
    with pytest.raises(UserError, match=r"^data.label_field: \S+/b\.csv:54 has no label; fill them in"):
        data(tmp_path / "b.csv", "csv", validation_source=f"csv:{tmp_path}/a.csv")
    made = data(tmp_path / "a.csv", "csv", validation_source=f"csv:{tmp_path}/b.csv")
    with pytest.raises(UserError, match=r"^data.validation_source: \S+/b\.csv:54 has no label; those"):
        made.rows("validation")


def test_labels_of_no_use_are_refused(tmp_path):
    train, other = tmp_path / "a.tsv", tmp_path / "b.tsv"
    train.write_text("text\tlabel\none\tgood\ntwo\tgood\n")
    with pytest.raises(UserError, match=r"^data.label_field: all training data have the label 'good'"):
        data(train)
    train.write_text("text\tlabel\none\tgood\ntwo\tbad\n")
    other.write_text("text\tlabel\none\tgood\ntwo\tmeh\n")
    made = data(train, validation_source=f"tsv:{other}")
    expected = r"^data.validation_source: \S+/b\.tsv:3 has the label 'meh'; .*'good'; give training some"
    with pytest.raises(UserError, match=expected):
        made.rows("validation")
    train.write_text("text\tlabel\none\tgood\ntwo\n")
    with pytest.raises(UserError, match=r"a\.tsv:3: 1 columns; the first line has 2$"):
        data(train)


def labelled_as(path, names):
    path.write_text(
        "text\tlabel\n" + "".join(f"text {i}\t{name}\n" for i, name in enumerate(names)), encoding="utf-8"
    )
    return data(path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["a", "", "b", " "],
            r"^data.label_field: \S+a.tsv:3 has no label, and 1 more have none; fill them in",
        ),
        (
            [f"{i / 7:.3f}" for i in range(300)],
            r"^data.label_field: 300 labels in 300 records, '0.000', .*most occur",
        ),
        ([f"n{i // 2}" for i in range(40)] + list("stuvwxyz"), r"28 labels in 48 records.*most occur once"),
        ([f"{i % 30 / 4}" for i in range(300)], r"30 labels in 300 records, .*: they are measurements"),
        (["a"] * 9, "all training data have the label 'a'; expected two or more"),
        (["so long " * 99] * 9, "all training data have the label '(so long ){7}so …'; expected two"),
        ([f"text {i} " * 99 for i in range(30)], r"30 labels in 30 records, '[^']{59}…', '[^']{59}…',"),
    ],
)
def test_what_is_no_class_is_refused(tmp_path, names, message):
    with pytest.raises(UserError, match=message):
        labelled_as(tmp_path / "a.tsv", names)


def test_what_may_be_a_mistake_is_said(tmp_path):
    made = labelled_as(tmp_path / "a.tsv", ["Pos", "neg", "pos", "ja  so", "Ja so", "ß", "ss"])
    said = remarks(made.labels)
    assert [re.findall("'(.*?)'", line) for line in said] == [
        ["Ja so", "ja  so"],
        ["Pos", "pos"],
        ["ss", "ß"],
    ]
    assert all("2 classes: only case, spaces or the form of characters differ" in line for line in said)
    alike = remarks(["caf\u00e9", "cafe\u0301", "\u200bno", "no", "Ja", "ja"])
    assert [re.findall("'(.*?)'", line) for line in alike] == [
        [r"caf\xe9", r"cafe\u0301"],
        [r"\u200bno", "no"],
        ["Ja", "ja"],
    ]
    assert remarks(labelled_as(tmp_path / "b.tsv", [str(i % 25) for i in range(100)]).labels) == [
        "the 25 labels are numbers, and each a class: which are near does not count"
    ]
    assert remarks(labelled_as(tmp_path / "c.tsv", [str(i % 10) for i in range(100)]).labels) == []
    assert remarks(labelled_as(tmp_path / "d.tsv", [f"{i % 10 / 2}" for i in range(100)]).labels) == []
    # Rare labels of a handful of records are what a first try looks like.
    assert len(labelled_as(tmp_path / "e.tsv", [f"n{i}" for i in range(15)]).labels) == 15


def test_a_record_to_measure_without_a_label_is_refused(tmp_path):
    (tmp_path / "b.tsv").write_text("text\tlabel\none\ta\ntwo\t\n")
    made = labelled_as(tmp_path / "a.tsv", ["a", "b"] * 5)
    made = data(tmp_path / "a.tsv", validation_source=f"tsv:{tmp_path}/b.tsv")
    with pytest.raises(UserError, match=r"b\.tsv:3 has no label; those of the training data are 'a'"):
        made.rows("validation")


def test_it_is_said_what_a_file_is_used_for(tmp_path, rng):
    write(tmp_path / "a.tsv", rng, 1000)
    made = data(tmp_path / "a.tsv", validation_source="")
    counts = [len(made.rows(split).packed) for split in ("train", "validation", "test")]
    line, overlap = made.division()
    assert overlap == f"0 of {counts[1]} validation records are also in training"
    assert [int(n) for n in re.findall(r"(\d+) (?:records|for)", line)] == counts and sum(counts) == 1000
    assert "--split=test" in line and "data.validation_source" in line
    assert data(tmp_path / "a.tsv").division() == ["1,000 of 1,000 validation records are also in training"]


def test_some_batches_are_not_the_longest_texts(tmp_path, rng):
    """Rows that one text fills come first, and a part of them would be the long texts alone."""
    write(tmp_path / "a.tsv", rng, 800, longest=45)
    rows = data(tmp_path / "a.tsv").rows("train")

    def share(**options):
        loader = DataLoader(rows, 4, **options)
        batches = [loader.batch_at(step) for step in range(len(loader) // 4)]
        return np.mean(np.concatenate([batch["weights"].sum(axis=1) for batch in batches]) == 1), batches

    whole = np.mean([rows.batch(np.array([i]))["weights"].sum() == 1 for i in range(len(rows))])
    assert share()[0] == 1 and whole < 0.8
    part, batches = share(shuffle=True)
    assert part == pytest.approx(whole, abs=5 * np.sqrt(whole * (1 - whole) / (4 * len(batches))))
    for one, other in zip(batches, share(shuffle=True)[1], strict=True):
        np.testing.assert_array_equal(one["tokens"], other["tokens"])


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_the_embedded_snippets_divide_without_overlap():
    made = LabelledData(LabelledDataConfig(tokenizer="bytes"))
    texts = {split: {text for text, _ in made.texts(split)} for split in ("train", "validation", "test")}
    assert len(texts["train"]) > 2000 and min(len(texts[split]) for split in texts) > 100
    assert not (texts["train"] & texts["validation"] or texts["train"] & texts["test"])
    assert len(made.labels) == 8


@pytest.mark.parametrize(("kind", "between"), [("tsv", "\t"), ("csv", ",")])
def test_a_table_without_a_column_for_the_labels_is_refused(tmp_path, kind, between):
    """Its first line was a header to the texts and no header to the labels, which so belonged to others."""
    rows = [("text", "stars"), *((f"a{i}", str(i % 2)) for i in range(40))]
    (tmp_path / "a").write_text("".join(between.join(row) + "\n" for row in rows))
    config = LabelledDataConfig(source=f"{kind}:{tmp_path}/a", tokenizer="bytes", cache_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"a:1.* no column 'label'; columns there: text, stars"):
        LabelledData(config)
    (tmp_path / "a").write_text("".join(between.join((*row, row[1])) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"'stars' twice"):
        LabelledData(dataclasses.replace(config, label_field="stars"))
