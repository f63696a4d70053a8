"""The record that `--mode=batch` names has the text that it shows, for every kind of data."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from commands.batch import documents
from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.chat.preferences import PreferenceData, PreferenceDataConfig
from transformer.data.encoders.labelled_text import LabelledData, LabelledDataConfig
from transformer.data.encoders.masked_text import MaskedData, MaskedDataConfig
from transformer.data.encoders.question_answering import SpanData, SpanDataConfig
from transformer.data.images.images import ImageData, ImageDataConfig
from transformer.data.loader import DataLoader
from transformer.data.pairs.pair_packing import JoinedPairs
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.text.packed_text import StreamRows, TextData, TextDataConfig
from transformer.data.text.skip_grams import SkipGramData, SkipGramDataConfig

COUNT = 60


def record(i, rng):
    """Record i, which repeats its name in every field; texts may be empty or long, answers misplaced."""
    text, other = (" ".join([f"r{i}."] * int(rng.integers(1, 9))) for _ in range(2))
    if i % 9 == 4:
        text = ""
    if i % 11 == 5:
        text = f"r{i}. " * 40
    question = {"question": f"r{i}?", "context": f"r{i}. {text}"}
    question["answers"] = {"text": [f"r{i}"], "answer_start": [0 if i % 7 else 1]}
    talk = [{"role": "user", "content": f"r{i}."}, {"role": "assistant", "content": f"{text} r{i}."}]
    answers = {"prompt": f"r{i}.", "chosen": f"{text} r{i}.", "rejected": f"r{i}. {other}"}
    pair = {"text": text, "second": other, "label": "ab"[i % 2], "source": text, "target": other}
    return pair | question | answers | {"messages": talk}


def joined(data, config):
    return data(config, packing=JoinedPairs)


def streams(data, config):
    made = data(config)
    rows = StreamRows(made.rows("train"), 4)
    made.loader = lambda split, size, **_: DataLoader(rows, 4)
    return made


KINDS = {
    "text": (TextData, TextDataConfig, {"sequence_length": 64}, None),
    "streams": (TextData, TextDataConfig, {"sequence_length": 64}, streams),
    "masked": (MaskedData, MaskedDataConfig, {"next_sentence": False, "sequence_length": 64}, None),
    "sentences": (MaskedData, MaskedDataConfig, {"sequence_length": 64}, None),
    "words": (SkipGramData, SkipGramDataConfig, {"sequence_length": 32, "subsample": 0.02}, None),
    "labels": (LabelledData, LabelledDataConfig, {"sequence_length": 64, "too_long": "skip"}, None),
    "windows": (LabelledData, LabelledDataConfig, {"sequence_length": 64, "too_long": "windows"}, None),
    "two texts": (LabelledData, LabelledDataConfig, {"second_field": "second"}, None),
    "pairs": (PairData, PairDataConfig, {"too_long": "skip"}, None),
    "joined pairs": (PairData, PairDataConfig, {}, joined),
    "spans": (SpanData, SpanDataConfig, {"misplaced": "skip", "stride": 64}, None),
    "chat": (ChatData, ChatDataConfig, {"too_long": "skip"}, None),
    "preferences": (PreferenceData, PreferenceDataConfig, {"sequence_length": 256}, None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_that_is_named_has_the_text_that_is_shown(tmp_path, rng, kind):
    data, config, keys, make = KINDS[kind]
    lines = [line for i in range(COUNT) for line in [""] * (i % 5 == 0) + [json.dumps(record(i, rng))]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = {"source": f"jsonl:{tmp_path}/a.jsonl", "validation_source": f"jsonl:{tmp_path}/a.jsonl"}
    words = {} if kind == "words" else {"tokenizer": "bytes"}
    made = config(**source, **words, cache_dir=str(tmp_path / "cache"), **keys)
    made = make(data, made) if make else data(made)
    loader = made.loader("train", 4, seed=1, shuffle=True, repeat=True)
    place = made.sources("train")[0].place
    seen, right = set(), []
    for step in range(min(2 * len(loader) + 1, 40) if kind != "streams" else len(loader)):
        numbers = loader.documents_at(step)
        for shown in documents(loader.batch_at(step), made.tokenizer, numbers):
            text = " ".join(value for value in shown.values() if isinstance(value, str))
            found = re.findall(r"r(\d+)\b" if kind == "words" else r"r(\d+)[.?]", text)
            if not found:  # a part of a name, at the end of a row
                continue
            at = place(shown["document"] - 1).removeprefix(f"{tmp_path}/a.jsonl:")
            ((name, _),) = Counter(re.findall(r"r(\d+)", lines[int(at) - 1])).most_common(1)
            # A mask changes digits, and the second of two sentences may be of another record.
            right.append(name in found if kind in ("masked", "sentences") else {*found} == {name})
            seen.add(name)
    assert len(seen) > COUNT / 2 and np.mean(right) > (0.8 if kind in ("masked", "sentences") else 0.999)


def test_the_image_that_is_named_has_the_label_that_is_shown(tmp_path, rng):
    for i in range(40):
        path = tmp_path / "images" / f"class {i % 4}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(path)
    config = ImageDataConfig(source=f"folder:{tmp_path}/images", cache_dir=str(tmp_path / "cache"))
    data = ImageData(config)
    loader, place = data.loader("train", 4, shuffle=True, repeat=True), data.sources("train")[0].place
    for step in range(9):
        batch = loader.batch_at(step)
        for i, shown in enumerate(documents(batch, None, loader.documents_at(step))):
            path = place(shown["document"] - 1)
            assert f"/{data.labels[shown['labels']]}/" in path
            np.testing.assert_array_equal(data.read(path), batch["images"][i])
