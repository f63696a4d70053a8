"""Texts with spans left out."""

import re
from collections import Counter

import numpy as np
import pytest

from transformer.data.sources import open_source
from transformer.data.sources.derived.span_corruption import PRESETS, SIDES, Denoiser
from transformer.errors import UserError

MARK = re.compile(r" ?<extra_id_(\d+)>")


def opened(name, field="source", split="train", **options):
    return open_source(name, split, field=field, fields=("source", "target"), **options)


@pytest.fixture
def texts(tmp_path, rng):
    """Files of random words and white space."""
    for number, count in enumerate((0, 1, 2, 5, 64, 65, 66, 300)):
        words = [f"w{i}{rng.choice([' ', '  ', chr(10), chr(9)])}" for i in range(count)]
        (tmp_path / f"{number}.txt").write_text("".join(words))
    return f"text:{tmp_path}/*.txt"


def restored(record):
    """The words of the source with the spans of the target in their places."""
    names = MARK.findall(record["source"])
    assert names == [str(i) for i in range(len(names))] == MARK.findall(record["target"])
    spans = MARK.split(record["target"])[2::2]
    whole = MARK.split(record["source"])
    text = whole[0]
    for span, after in zip(spans, whole[2::2], strict=True):
        assert span.strip()
        text += " " + span + " " + after
    return text.split()


@pytest.mark.parametrize("kind", ["", "ul2:", "prefix:", "0.5,2:", "0.9,9,7:"])
def test_source_and_target_are_the_text(texts, kind):
    """Each word of each text once and in order, but the last one of a text that is alone in its record."""
    source = opened(f"spans:{kind}{texts}", divide=False)
    words = 7 if kind.endswith("7:") else 64
    expected = []
    whole = open_source(texts, "train", divide=False)
    for number in range(len(whole)):
        all_words = whole.text(number).split()
        parts = [all_words[i : i + words] for i in range(0, len(all_words), words)]
        expected += [part for part in parts if len(part) > 1]
    assert [restored(source[i]) for i in range(len(source))] == expected
    target = opened(f"spans:{kind}{texts}", "target", divide=False)
    assert target[3] == source[3] and target.text(3) == source[3]["target"]
    assert target.identity == source.identity


@pytest.mark.parametrize(("share", "span"), [(0.15, 3), (0.5, 8), (0.5, 1), (0.99, 64), (0.001, 3)])
def test_share_and_number_of_spans(share, span, rng):
    for count in (2, 3, 10, 64, 1000):
        cuts = Denoiser(share, span).cuts(count, rng)
        gaps = np.diff(cuts, prepend=0)
        out = min(max(round(count * share), 1), count - 1)
        assert (gaps > 0).all() and cuts[-1] == count
        assert gaps[1::2].sum() == out
        assert len(cuts) == 2 * min(max(round(out / span), 1), out, count - out)


def test_every_division_is_equally_likely(rng):
    """Of 7 words, 4 are left out in 2 spans: C(3, 1) C(2, 1) = 6 ways."""
    count = 6000
    ways = Counter(tuple(Denoiser(4 / 7, 2).cuts(7, rng).tolist()) for _ in range(count))
    assert len(ways) == 6
    assert all(abs(number - count / 6) < 5 * np.sqrt(count / 6) for number in ways.values())


def test_a_prefix_is_continued(texts):
    source = opened(f"spans:prefix:{texts}", divide=False)
    assert all(source[i]["source"].endswith("<extra_id_0>") for i in range(len(source)))
    assert len(source[2]["target"].split()) == 1 + 16  # a quarter of 64


def test_records_are_drawn_by_their_number_and_the_denoisers(texts):
    first, again = (opened(f"spans:{texts}", divide=False) for _ in range(2))
    assert [first[i] for i in (5, 3)] == [again[i] for i in (5, 3)]
    other = opened(f"spans:0.15,4:{texts}", divide=False)
    assert other.identity != first.identity and other[3] != first[3]
    drawn = [first[i]["source"].split().index("<extra_id_0>") for i in (3, 4, 5)]
    assert len({*drawn}) > 1
    turns = opened(f"spans:ul2,16:{texts}", divide=False)
    starts = [len(MARK.findall(turns[i]["target"])) for i in range(6, 6 + len(PRESETS["ul2"]))]
    assert len({*starts}) > 1


def test_splits_are_those_of_the_texts():
    whole = {split: opened("spans:stdlib", split=split) for split in ("validation", "test")}
    assert whole["validation"].text(0) != whole["test"].text(0)
    assert whole["validation"].place(0) == open_source("stdlib", "validation").place(0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("spans:", "expected spans:SOURCE"),
        ("spans:1.5,3:stdlib", "expected spans:SOURCE"),
        ("spans:0,3:stdlib", "expected spans:SOURCE"),
        ("spans:t5,1:stdlib", "expected spans:SOURCE"),
        ("spans:ul3:stdlib", "'ul3:stdlib': unknown source"),
    ],
)
def test_other_arguments_are_refused(name, message):
    with pytest.raises(UserError, match=message):
        opened(name)
    with pytest.raises(UserError, match="no field 'text'; fields there: source, target"):
        opened("spans:stdlib", field="text")


def test_texts_are_read_from_the_field_that_is_asked_for(tmp_path):
    """In place of `source`; the target is left out of the same texts."""
    file = tmp_path / "articles.jsonl"
    file.write_text("".join(f'{{"article": "a b c d e f {i}", "text": "x y {i}"}}\n' for i in range(20)))
    fields = ("article", "target")
    source, target = (
        open_source(f"spans:jsonl:{file}", "train", field=field, fields=fields, divide=False)
        for field in fields
    )
    default = open_source(f"spans:jsonl:{file}", "train", field="source", fields=SIDES, divide=False)
    assert restored({"source": source.text(3), "target": target.text(3)}) == [
        "a",
        "b",
        "c",
        "d",
        "e",
        "f",
        "3",
    ]
    assert restored(default[3]) == ["x", "y", "3"]
    assert source.identity == target.identity != default.identity
    for others in (("article", "summary"), ("article",), ("article", "text", "target")):
        with pytest.raises(UserError, match="fields there: source, target"):
            open_source(f"spans:jsonl:{file}", "train", field="article", fields=others)
