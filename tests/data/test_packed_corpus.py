"""What packing leaves out or truncates is counted once for all kinds of rows, at start and in the run."""

import json

import numpy as np
import pytest

import launch
from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.chat.preferences import PreferenceData, PreferenceDataConfig
from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.masked_text import MaskedData, MaskedDataConfig
from transformer.data.encoders.question_answering import SpanData, SpanDataConfig
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.sources.base import KEPT

pytestmark = pytest.mark.usefixtures("in_root")

ROW = 32
"""The tokens, bytes of text, of a row."""


def answer(text):
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]


KINDS = {
    "chat": (ChatData, ChatDataConfig, lambda text: {"messages": answer(text)}, {}),
    "pairs": (
        PairData,
        PairDataConfig,
        lambda text: {"source": text, "target": "a"},
        {"source_length": ROW, "target_length": ROW},
    ),
    "preferences": (
        PreferenceData,
        PreferenceDataConfig,
        lambda text: {"prompt": "?", "chosen": text, "rejected": f"{text}?"},
        {"sequence_length": 2 * ROW},
    ),
    "labelled": (LabelledData, LabelledDataConfig, lambda text: {"text": text, "label": str(len(text))}, {}),
    "masked": (MaskedData, MaskedDataConfig, lambda text: {"text": text}, {"next_sentence": False}),
    "sentences": (MaskedData, MaskedDataConfig, lambda text: {"text": text}, {}),
    "questions": (
        SpanData,
        SpanDataConfig,
        lambda text: {"question": text, "context": "x y", "answers": {"text": ["y"], "answer_start": [2]}},
        {"question_length": 16, "stride": 4},
    ),
}
"""Name -> data, config, the record with a text, and keys."""

TOO_LONG = {"labelled", "chat", "pairs", "preferences"}
"""Those with `data.too_long`."""


def made(kind, path, texts, **changes):
    data, config, record, keys = KINDS[kind]
    path.write_text("".join(f"{json.dumps(record(text))}\n" for text in texts))
    source = dict.fromkeys(["source", "validation_source"], f"jsonl:{path}")
    rows = {} if kind == "pairs" else {"sequence_length": ROW}
    folder = {"cache_dir": str(path.parent / "cache"), "tokenizer": "bytes"}
    return data(config(**source | folder | rows | keys | changes))


def texts_of(rng, kind):
    """Texts of which some are empty, where they may be, and some longer than a row."""
    sizes = [*rng.integers(3, 9, 12), *rng.integers(70, 90, 5)]
    texts = ["ab " * (size // 3) + "x" * (size % 3) + "ab" for size in sizes]
    return texts + ([] if kind in ("chat", "preferences") else ["", "", ""])


@pytest.mark.parametrize("too_long", ["cut", "skip"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_packed_or_left_out_with_a_reason(tmp_path, rng, kind, too_long):
    texts = texts_of(rng, kind)
    keys = {"too_long": too_long} if kind in TOO_LONG else {}
    data = made(kind, tmp_path / "a.jsonl", texts, **keys)
    name = data.sources("train")[0].name
    tally = data.tallies("train")[name]
    (rows,) = [rows for _, rows in data.packings("train")]
    documents = np.concatenate(rows.documents(np.arange(len(rows))))
    left_out = sum(count for what, count in tally.items() if what not in KEPT)
    if kind in ("masked", "sentences"):  # long ones are cut into several
        assert tally["packed"] == len(documents) and {*documents} == {*range(17)} and tally["empty"] == 3
        return
    assert tally["packed"] == len({*documents}) == len(texts) - left_out
    skipped = too_long == "skip" and kind in TOO_LONG
    assert tally.get("truncated", 0) == (0 if skipped else 5)
    assert left_out == len(texts) - 17 + (5 if skipped else 0)


def test_a_part_of_a_second_text_and_a_lone_word_are_counted(tmp_path):
    texts = ["ab cd"] * 9 + ["ab cdefg"] * 9 + ["lone"] * 3
    data = made("sentences", tmp_path / "a.jsonl", texts)
    (tally,) = data.tallies("train").values()
    # All second texts are of one group of two lengths, so that each loses something.
    assert tally == {"packed": 18, "truncated": 18, "no second word": 3}


def test_an_answer_that_is_in_no_window_is_counted(tmp_path):
    """It is trained on as if the question had none."""
    context = "x" * 40 + " y"
    answers = [{"text": [context[start:]], "answer_start": [start]} for start in (0, 2, 41)]
    answers.append({"text": [], "answer_start": []})
    record = {"question": "?", "context": context}
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(record | {'answers': a})}\n" for a in answers))
    source = dict.fromkeys(["source", "validation_source"], f"jsonl:{tmp_path}/a.jsonl")
    keys = {"tokenizer": "bytes", "sequence_length": ROW, "question_length": 8, "stride": 4}
    data = SpanData(SpanDataConfig(**source, **keys, cache_dir=str(tmp_path / "cache")))
    assert data.rows("train").tally == {"packed": 4, "without the answer in one window": 2}


def test_every_source_of_a_mixture_is_counted(tmp_path):
    sources = {}
    for name, empty in (("a", 2), ("b", 0), ("c", 1)):
        texts = [f"some text {i} of {name}" for i in range(60)] + [""] * empty
        (tmp_path / name).write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
        sources[f"jsonl:{tmp_path}/{name}"] = 1.0
    keys = {"sources": sources, "tokenizer": "bytes", "next_sentence": False, "document": "line"}
    data = MaskedData.of(MaskedDataConfig(**keys, sequence_length=ROW, cache_dir=str(tmp_path / "cache")))
    tallies = data.tallies("train", "validation", "test")
    empty = {name: 0 for name in "abc"}
    for name, tally in tallies.items():
        empty[name.partition(" ")[0][-1]] += tally["empty"]
    assert empty == {"a": 2, "b": 0, "c": 1}


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["own", "library_questions"])
def test_a_run_says_and_keeps_what_packing_leaves_out(tmp_path, capsys, rng, source):
    """Also of a source whose splits are known to be apart."""
    if source == "own":
        path = tmp_path / "a.jsonl"
        path.write_text("".join(f"{json.dumps({'messages': answer(t)})}\n" for t in texts_of(rng, "chat")))
        source = f"jsonl:{path}"
    keys = {"tokenizer": "bytes", "too_long": "skip", "source": source}
    if source.startswith("jsonl"):
        keys |= {"validation_source": source, "overlap": 1.0, "sequence_length": 2 * ROW}
    command = ["--config=configs/finetune_chat.py:tiny", f"--workdir={tmp_path}/run"]
    given = [f"--config.data.{key}={value}" for key, value in keys.items()]
    assert launch.main([*command, *given, "--config.train.steps=1"]) == 0
    said = capsys.readouterr().out.splitlines()
    kept = json.loads((tmp_path / "run" / "data.json").read_text())["left_out"]
    for split in ("train", "validation"):
        ((name, tally),) = (each for each in kept.items() if each[0].endswith(f"({split})"))
        assert tally.keys() == {"packed", "too long"}
        packed, long = (f"{tally[what]:,}" for what in ("packed", "too long"))
        assert said.count(f"{name}: {packed} packed, {long} left out (too long: {long})") == 1
