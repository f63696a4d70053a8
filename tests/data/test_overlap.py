"""How much of validation is also in training: counted for every kind of data, and refused."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.test_every_source import ARGUMENTS
from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.chat.preferences import PreferenceData, PreferenceDataConfig
from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.question_answering import SpanData, SpanDataConfig
from transformer.data.images.images import ImageData, ImageDataConfig
from transformer.data.overlap import check_overlap, overlap_lines, shared
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.sources import SOURCES, open_source
from transformer.data.sources.base import SPLITS
from transformer.data.sources.options import before_answer
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.errors import UserError

KINDS = {
    "labelled": (LabelledData, LabelledDataConfig),
    "pairs": (PairData, PairDataConfig),
    "preferences": (PreferenceData, PreferenceDataConfig),
    "chat": (ChatData, ChatDataConfig),
    "questions": (SpanData, SpanDataConfig),
    "text": (TextData, TextDataConfig),
}


def user(text):
    return {"role": "user", "content": text}


def record(i, asked):
    """A record of every kind of data, the i-th, in which a model is asked `asked`."""
    answer = {"role": "assistant", "content": f"answer {i}"}
    return {
        "text": asked,
        "second": f"second {i}",
        "label": "ab"[i % 2],
        "source": asked,
        "target": f"target {i}",
        "prompt": asked,
        "chosen": f"good {i}",
        "rejected": f"bad {i}",
        "messages": [user(asked), answer, user(f"more {i}"), answer],
        "question": f"which {i}?",
        "context": asked,
        "answers": {"text": [asked], "answer_start": [0]},
    }


def write(path, asked):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record(i, text)) + "\n" for i, text in enumerate(asked)))
    return f"jsonl:{path}"


def make(kind, source, folder, **keys):
    data, config = KINDS[kind]
    keys |= {"source": source, "tokenizer": "bytes", "cache_dir": str(folder / "cache")}
    return data(config(**keys | ({"second_field": "second"} if kind == "labelled" else {})))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [60, 200])
def test_what_a_model_is_asked_is_in_one_split(tmp_path, rng, kind, count):
    """Prompts, sources, premises, contexts and texts that occur with several answers."""
    asked = [f"asked {i // 3}" for i in rng.permutation(3 * count)]
    data = make(kind, write(tmp_path / "a.jsonl", asked), tmp_path)
    assert overlap_lines(data)[0].startswith("0 of ")
    texts = {split: {text for s in data.conditions(split) for text in s.texts()} for split in SPLITS}
    assert sum(map(len, texts.values())) == len(set().union(*texts.values())) == count
    check_overlap(data)
    former = make(kind, data.config.source, tmp_path, split_by="target")
    assert shared(former)[0].any()


@pytest.mark.parametrize("kind", KINDS)
def test_validation_that_is_also_in_training_is_counted_and_refused(tmp_path, kind):
    train = write(tmp_path / "d" / "train.jsonl", [f"asked {i}" for i in range(40)])
    other = [f"asked {i}" for i in (100, 7, 101, 9)] + [" asked 7\n"] * (kind not in ("chat", "preferences"))
    keys = {"validation_source": write(tmp_path / "valid.jsonl", other)}
    data = make(kind, train, tmp_path, **keys)
    count, total = len(other) - 2, len(other)
    said = f"{count} of {total} validation records are also in training"
    assert overlap_lines(data) == data.division() == [said]
    with pytest.raises(
        UserError, match=rf"^data: {said}, the first at \S+valid\.jsonl:2; give other data, or set"
    ):
        check_overlap(data)
    check_overlap(make(kind, train, tmp_path, **keys, overlap=count / total))
    (tmp_path / "d" / "valid.jsonl").write_bytes((tmp_path / "valid.jsonl").read_bytes())
    keys["validation_source"] = f"jsonl:{tmp_path}/d/valid.jsonl"
    within = make(kind, f"jsonl:{tmp_path}/d/*.jsonl", tmp_path, **keys)
    said = rf"^data: {total} of {total} .*, the first at \S+d/valid\.jsonl:1 \(valid\.jsonl: a file of both\)"
    with pytest.raises(UserError, match=said):
        check_overlap(within)


def test_the_condition_of_messages_ends_with_the_first_answer_to_a_user():
    greeting, question = {"role": "assistant", "content": "hello"}, user("why?")
    system = {"role": "system", "content": "be brief"}
    other = [{"from": "human", "value": "why?", "id": 7}, {"from": "gpt", "value": "so"}]
    assert before_answer([question, greeting, user("and?"), greeting]) == [("user", "why?")]
    assert before_answer(other) == [("human", "why?")]
    assert len(before_answer([system, greeting, question, greeting])) == 3  # not what many have in common
    assert before_answer([greeting]) == [("assistant", "hello")]
    assert before_answer("text") == "text" and before_answer(["a", "b"]) == ["a", "b"]


def test_blank_records_are_not_compared(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n\n \n")
    keys = {"document": "line", "validation_source": f"text:{tmp_path}/valid.txt"}
    data = make("text", f"text:{tmp_path}/train.txt", tmp_path, **keys)
    assert overlap_lines(data) == ["0 of 3 validation records are also in training"]


@pytest.mark.parametrize("kind", ["aligned", "line", "paragraph"])
def test_equal_lines_are_in_one_split_unless_they_are_divided_by_their_order(tmp_path, rng, kind):
    said = [f"line {i % 150}" for i in rng.permutation(900)]
    end = "\n\n" if kind == "paragraph" else "\n"
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{each} {name}{end}" for each in said))
    if kind == "aligned":
        source, name, keys = f"aligned:{tmp_path}/a,{tmp_path}/b", "pairs", {}
    else:
        source, name, keys = f"text:{tmp_path}/a", "text", {"document": kind}
    data = make(name, source, tmp_path, **keys)
    assert not shared(data)[0].any() and len(shared(data)[0]) > 20
    written = [f"{each} {'b' if kind == 'aligned' else 'a'}" for each in said]

    def texts(made, split):
        source = made.sources(split)[-1]
        return [source.text(i).strip() for i in range(len(source))]

    assert sorted(text for split in SPLITS for text in texts(data, split)) == sorted(written)
    placed = make(name, source, tmp_path, **keys, split_by="place")
    assert shared(placed)[0].all()
    assert [text for split in SPLITS for text in texts(placed, split)] == written
    assert len(texts(placed, "validation")) in (45, 46)


def test_images_are_counted_by_their_content(tmp_path):
    def save(folder, names, colour=0):
        for i, name in enumerate(names):
            path = tmp_path / folder / "ab"[i % 2] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 10 * i + colour, np.uint8)).save(path)

    save("train", [f"{i}.png" for i in range(10)])
    save("valid", ["x.png", "y.png"])
    save("valid", ["z.png", "w.png"], colour=5)
    keys = {"source": f"folder:{tmp_path}/train", "validation_source": f"folder:{tmp_path}/valid"}
    data = ImageData(ImageDataConfig(**keys, cache_dir=str(tmp_path / "cache")))
    assert data.division() == ["2 of 4 validation records are also in training"]
    with pytest.raises(UserError, match=r"the first at \S+valid/a/x\.png"):
        check_overlap(data)


def test_a_file_is_read_once_however_it_is_reached(tmp_path):
    (tmp_path / "b.txt").write_text("b\n")
    os.symlink(tmp_path / "b.txt", tmp_path / "a.txt")
    os.link(tmp_path / "b.txt", tmp_path / "c.txt")
    (tmp_path / "d.txt").write_text("b\n")
    source = open_source(f"text:{tmp_path}/*.txt", "train", cache_dir=tmp_path, divide=False)
    assert [source[i]["file"] for i in range(len(source))] == [f"{tmp_path}/a.txt", f"{tmp_path}/d.txt"]


@pytest.mark.thorough
@pytest.mark.parametrize("source", [name for name, kind in SOURCES.items() if kind.are_apart])
def test_what_is_not_counted_shares_nothing(tmp_path, source):
    kind = SOURCES[source]
    fields = {"function_questions": "context"}
    field, name = fields.get(source, kind.divided_by or kind.FIELDS[0]), ARGUMENTS.get(source, source)
    train, validation = (
        [opened.text(i).strip() for i in range(len(opened))]
        for split in ("train", "validation")
        for opened in [open_source(name, split, cache_dir=tmp_path, field=field)]
    )
    assert validation and not {*train} & {*validation}
