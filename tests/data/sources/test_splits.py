"""What is read of a record is never in two splits."""

import csv
import json

import pytest

from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.question_answering import SpanData, SpanDataConfig
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.sources import open_source
from transformer.data.sources.base import SPLITS
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.errors import UserError


def write(path, kind, records):
    """The records as a file; the name of the source that it is."""
    if kind == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind == "tsv" else {}
            writer = csv.DictWriter(file, [*records[0]], lineterminator="\n", **form)
            writer.writeheader()
            writer.writerows(records)
    return f"{kind}:{path}"


def records_of(count, alike, rng):
    """Records of which `alike` share their text, and others their text and second text, in any order; an id
    of their own each."""
    records = [
        {"id": f"n{i}", "text": f"tëxt {i // alike}", "second": f"s{i // alike}", "label": "ab"[i % 2]}
        for i in range(count)
    ]
    return [records[i] for i in rng.permutation(count)]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["jsonl", "tsv", "csv"])
@pytest.mark.parametrize("count", [90, 2000])
def test_copies_with_another_id_are_in_one_split(tmp_path, rng, kind, count):
    records = records_of(count, 3, rng)
    keys = {"tokenizer": "bytes", "cache_dir": str(tmp_path)}
    source = write(tmp_path / "a", kind, records)
    made = LabelledData(LabelledDataConfig(source=source, second_field="second", **keys))
    by_split = {split: [texts for texts, _ in made.texts(split)] for split in SPLITS}
    found = [text for texts in by_split.values() for text in texts]
    assert sorted(found) == sorted((record["text"], record["second"]) for record in records)
    assert sum(len(set(texts)) for texts in by_split.values()) == len(set(found))
    for split, (low, high) in SPLITS.items():
        expected = (high - low) * count
        assert abs(len(by_split[split]) - expected) < 5 * (3 * expected) ** 0.5
    text = TextData(TextDataConfig(source=source, **keys)) if kind == "jsonl" else None
    pairs = PairData(PairDataConfig(source=source, source_field="text", target_field="id", **keys))
    for other in filter(None, (text, pairs)):
        texts = {
            split: [source.text(i) for i in range(len(source))]
            for split in SPLITS
            for source in other.sources(split)[:1]
        }
        assert sum(len(set(each)) for each in texts.values()) == len(set().union(*texts.values()))
        assert sum(map(len, texts.values())) == count


@pytest.mark.parametrize("kind", ["jsonl", "squad"])
@pytest.mark.parametrize("count", [30, 600])
def test_questions_on_one_context_are_in_one_split(tmp_path, kind, count):
    def question(i):
        return {"id": f"q{i}", "question": f"which {i}?", "answers": [{"text": "it", "answer_start": 0}]}

    contexts = [f"it is {i % count}" for i in range(count + 20)]  # the last ones are there already
    asked = [[question(2 * i), question(2 * i + 1)] for i in range(len(contexts))]
    if kind == "squad":
        paragraphs = [{"context": c, "qas": qas} for c, qas in zip(contexts, asked, strict=True)]
        (tmp_path / "a").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        source = f"squad:{tmp_path}/a"
    else:
        answers = {"text": ["it"], "answer_start": [0]}
        source = write(
            tmp_path / "a",
            kind,
            [
                q | {"context": c, "answers": answers}
                for half in (0, 1)
                for c, qas in zip(contexts, asked, strict=True)
                for q in [qas[half]]
            ],
        )
    made = SpanData(SpanDataConfig(source=source, tokenizer="bytes", cache_dir=str(tmp_path)))
    found = {split: list(made.questions(split)) for split in SPLITS}
    contexts_of = {split: {each.context for each in questions} for split, questions in found.items()}
    assert sum(map(len, contexts_of.values())) == count
    assert sum(map(len, found.values())) == 2 * (count + 20)
    assert all(found.values())


@pytest.mark.parametrize("kind", ["jsonl", "tsv", "csv"])
@pytest.mark.parametrize("count", [90, 900])
def test_a_key_says_by_what_a_file_is_divided(tmp_path, rng, kind, count):
    records = [{"text": f"t{i}", "label": "ab"[i % 2], "group": f"g{i % 45}"} for i in range(count)]
    source = write(tmp_path / "a", kind, records)

    def opened(split, **options):
        opened = open_source(source, split, cache_dir=tmp_path, **options)
        return [opened[i] for i in range(len(opened))], opened.identity

    by = {split: opened(split, reads=["text"], split_by=["group"]) for split in SPLITS}
    groups = {split: {record["group"] for record in found} for split, (found, _) in by.items()}
    assert sum(map(len, groups.values())) == 45
    assert sum(len(found) for found, _ in by.values()) == count
    # Both fields have to be alike, and another rule is another identity.
    both = {split: opened(split, split_by=["text", "group"]) for split in SPLITS}
    if count > 200:
        assert any(both[split][0] != by[split][0] for split in SPLITS)
    identities = {by["train"][1], both["train"][1], opened("train")[1], opened("train", reads=["text"])[1]}
    assert len(identities) == 4
    with pytest.raises(
        UserError, match=r"a.*: no field 'grp' to split by; fields there: text, label, group$"
    ):
        opened("train", split_by=["grp"])
    # What is not divided is not divided by anything.
    whole = {opened("train", divide=False)[1], opened("train", divide=False, split_by=["group"])[1]}
    assert len(whole) == 1 and len(opened("test", divide=False)[0]) == count


@pytest.mark.thorough
def test_where_a_key_would_do_nothing_it_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("some text\n" * 30)
    for source, by in ((f"text:{tmp_path}/a.txt", "place"), ("snippets", "text")):
        with pytest.raises(UserError, match=rf"it is split by {by}.*; leave data.split_by empty$"):
            open_source(source, "train", cache_dir=tmp_path, split_by=["id"])
    assert open_source("snippets", "train", cache_dir=tmp_path, split_by=["text"])
