import ast
import functools
import json
import re
import textwrap

import numpy as np
import pytest

from transformer.data.encoders.question_answering import SpanData, SpanDataConfig, windows
from transformer.data.encoders.question_cache import MisplacedAnswer, Question, token_spans
from transformer.data.line_escapes import escape
from transformer.data.sources import open_source
from transformer.data.sources.embedded.function_questions import ask
from transformer.errors import UserError


def records_of(rng, count=60, longest=120, none=0.2):
    """Questions to random texts, with up to three answers each: pieces of the text, wherever they are."""
    letters, found = np.array(list("abcdefgh .é日")), []
    for number in range(count):
        context = "x" + "".join(rng.choice(letters, rng.integers(20, longest)))
        if number % 3 == 2:
            context = found[-1]["context"]
        texts, starts = [], []
        while rng.random() > none and len(texts) < 3:
            first = int(rng.integers(0, len(context)))
            text = context[first : first + int(rng.integers(1, 12))]
            if text.strip():
                texts.append(text)
                starts.append(first)
        question = f"{number} " + "".join(rng.choice(letters, rng.integers(0, 20)))
        found.append(
            {"question": question, "context": context, "answers": {"text": texts, "answer_start": starts}}
        )
    return found


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def data(source, folder, **changes) -> SpanData:
    keys = {"source": source, "validation_source": source, "tokenizer": "bytes"}
    keys |= {"sequence_length": 64, "question_length": 16, "stride": 20, "cache_dir": str(folder)}
    return SpanData(SpanDataConfig(**keys | changes))


def segments_of(rows):
    """Of every window of every row its arrays, and the places of its answer within it."""
    for row in range(len(rows)):
        batch = {name: values[0] for name, values in rows.batch(np.array([row])).items()}
        assert not batch["choices"][batch["segments"] == 0].any()
        for k in range(int(batch["weights"].sum())):
            (here,) = np.nonzero(batch["segments"] == k + 1)
            assert (np.diff(here) == 1).all()
            arrays = {name: batch[name][here] for name in ("tokens", "types", "choices", "positions")}
            yield arrays, tuple(int(place) for place in batch["places"][k] - here[0])


def test_every_window_has_its_answer_where_a_loop_over_bytes_finds_it(tmp_path, rng):
    """The rows of all windows against windows, and answers in them, that are cut out of the texts' bytes."""
    records = records_of(rng)
    made = data(f"jsonl:{write(tmp_path / 'a.jsonl', records)}", tmp_path)
    rows = made.rows("train")
    expected = []
    for record in records:
        question, text = record["question"].encode()[:16], record["context"].encode()
        room, start = 64 - 3 - len(question), 0
        while True:
            target, before = (0, 0), len(question) + 2
            for answer, at in zip(*record["answers"].values(), strict=True):
                first = len(record["context"][:at].encode())
                last = first + len(answer.encode()) - 1
                if start <= first and last < start + room and target == (0, 0):
                    target = first - start + before, last - start + before
            expected.append((question, text[start : start + room], target))
            if start + room >= len(text):
                break
            start += 20
    found = []
    for arrays, target in segments_of(rows):
        first = np.flatnonzero(arrays["types"] == 1)[0]
        question, window = (
            bytes(arrays["tokens"][1 : first - 1].tolist()),
            bytes(arrays["tokens"][first:-1].tolist()),
        )
        found.append((question, window, target))
        assert (
            arrays["tokens"][[0, first - 1, -1]].tolist()
            == [made.special_tokens.cls] + [made.special_tokens.sep] * 2
        )
        np.testing.assert_array_equal(arrays["positions"], np.arange(len(arrays["tokens"])))
        np.testing.assert_array_equal(
            np.flatnonzero(arrays["choices"]), [0, *range(first, len(arrays["tokens"]) - 1)]
        )
    assert sorted(found) == sorted(expected)
    truncated = sum(len(record["question"].encode()) > 16 for record in records)
    assert rows.tally.get("truncated", 0) == truncated
    assert rows.answered == pytest.approx(np.mean([target != (0, 0) for _, _, target in expected]))


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe", "characters"])
def test_an_answer_is_read_back_from_its_tokens(tmp_path, rng, tokenizer):
    source = f"jsonl:{write(tmp_path / 'a.jsonl', records_of(rng))}"
    made = data(source, tmp_path, tokenizer=tokenizer, vocab_size=300)
    fits = 0
    for question in made.questions("train"):
        reading = made.read(question.question, question.context)
        spans_a2 = token_spans(reading.characters_c2, question.answers)
        assert len(spans_a2) == len(question.answers)
        for (first, last), wanted in zip(spans_a2, question.references, strict=False):
            found = reading.text(first, last)
            assert wanted.strip() in found
            assert tokenizer == "bpe" or found == wanted.strip()
            fits += any(start <= first and last < end for start, end in reading.windows)
        for (start, end), (tokens, types) in zip(reading.windows, reading.inputs, strict=True):
            assert (
                made.tokenizer.decode(tokens[reading.before : -1]) in question.context or tokenizer == "bytes"
            )
            assert types.sum() == end - start + 1 and len(tokens) == reading.before + end - start + 1
    assert fits > 20


def test_what_is_predicted_from_is_what_was_trained_on(tmp_path, rng):
    records = records_of(rng)
    made = data(f"jsonl:{write(tmp_path / 'a.jsonl', records)}", tmp_path)
    trained = sorted(arrays["tokens"].tolist() for arrays, _ in segments_of(made.rows("train")))
    frames = [
        frame for record in records for frame in made.read(record["question"], record["context"]).inputs
    ]
    assert sorted(tokens.tolist() for tokens, _ in frames) == trained


def test_windows_cover_the_text_and_hold_every_short_piece_whole(rng):
    for _ in range(300):
        length, room = int(rng.integers(1, 60)), int(rng.integers(1, 30))
        stride = int(rng.integers(1, room + 1))
        found = windows(length, room, stride)
        assert set().union(*(range(*window) for window in found)) == set(range(length))
        assert all(0 < last - first <= room for first, last in found)
        assert all(last < length for _, last in found[:-1])  # none more than it takes
        piece = min(room - stride + 1, length)
        for start in range(length - piece + 1):
            assert any(first <= start and start + piece <= last for first, last in found)


def test_characters_to_tokens_equals_a_loop(rng):
    for _ in range(200):
        widths = rng.integers(1, 5, rng.integers(1, 12))
        gaps = rng.integers(0, 2, len(widths))  # what a tokenizer drops: spaces, say
        starts = np.cumsum(widths + gaps) - widths
        characters = np.stack([starts, starts + widths], axis=1)
        characters = np.repeat(characters, rng.integers(1, 3, len(widths)), axis=0)  # bytes of one character
        first = int(rng.integers(0, characters[-1, 1]))
        last = int(rng.integers(first + 1, characters[-1, 1] + 2))
        touched = [i for i, (s, e) in enumerate(characters) if set(range(s, e)) & set(range(first, last))]
        expected = [[touched[0], touched[-1]]] if touched else []
        assert token_spans(characters, [(first, last)]).tolist() == expected


def test_a_question_without_an_answer_points_at_cls(tmp_path):
    record = {"question": "q?", "context": "some text", "answers": {"text": [], "answer_start": []}}
    made = data(f"jsonl:{write(tmp_path / 'a.jsonl', [record])}", tmp_path)
    assert [target for _, target in segments_of(made.rows("train"))] == [(0, 0)]
    (question,) = made.questions("train")
    assert question.references == [""]


GOOD = {"question": "q?", "context": "one two", "answers": {"text": ["two"], "answer_start": [4]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, "a.jsonl:3: no text 'question'; fields there: question, context, answers"),
        ({"question": "\ud83d"}, "a.jsonl:3: half of a surrogate pair in 'question'"),
        ({"context": 3}, "a.jsonl:3: int, not text, in 'context'; fields there: "),
        ({"answers": None}, "a.jsonl:3: no field 'answers'; expected {\"text\": "),
        ({"answers": "two"}, "a.jsonl:3: 'answers' is not an object; expected "),
        ({"answers": {"text": ["two"]}}, "a.jsonl:3: 'answers' is not of its form; expected "),
        ({"answers": {"text": ["two"], "answer_start": []}}, "a.jsonl:3: 'answers' is not of its form"),
        ({"answers": {"text": ["two"], "answer_start": ["4"]}}, "a.jsonl:3: 'two' at '4'; expected a text"),
        ({"answers": {"text": ["two"], "answer_start": [-3]}}, "a.jsonl:3: 'two' at -3; expected a text"),
        ({"answers": {"text": ["n"], "answer_start": [True]}}, "a.jsonl:3: 'n' at True; expected a text"),
        ({"answers": {"text": [" "], "answer_start": [3]}}, "a.jsonl:3: ' ' at 3; expected a text"),
        (
            {"answers": {"text": ["two"], "answer_start": [3]}},
            "a.jsonl:3: at character 3 is ' tw', not the answer 'two'",
        ),
    ],
)
def test_a_record_of_no_use_is_named_by_file_and_line(tmp_path, change, message):
    made = data(f"jsonl:{write(tmp_path / 'a.jsonl', [GOOD, GOOD, GOOD | change, GOOD])}", tmp_path)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        made.rows("train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_an_answer_keeps_the_marks_that_the_tokenizer_leaves_out(tmp_path, tokenizer):
    answers = ["cafe\u0301", "\u0928\u093f", "nai\u0308ve e\u0323\u0301", "plain"]
    context = f"at the {answers[0]} in {answers[1]}: {answers[2]}, {answers[3]}"
    found = [{"text": [text], "answer_start": [context.index(text)]} for text in answers]
    records = [{"question": "where ?", "context": context, "answers": each} for each in found] * 8
    keys = {"tokenizer": tokenizer, "vocab_size": 300, "strip_accents": True}
    made = data(f"jsonl:{write(tmp_path / 'a.jsonl', records)}", tmp_path, **keys)
    cache, reading = made.rows("train").cache, made.read("where ?", context)
    read = {reading.text(*map(int, cache.answers[i][0])) for i in range(len(cache))}
    assert read == {*answers}


def test_misplaced_and_empty_ones_are_left_out_and_counted(tmp_path):
    bad = GOOD | {"answers": {"text": ["two"], "answer_start": [3]}}
    empty = GOOD | {"context": "", "answers": {"text": [], "answer_start": []}}
    path = write(tmp_path / "a.jsonl", [GOOD, bad, empty, GOOD])
    made = data(f"jsonl:{path}", tmp_path, misplaced="skip")
    rows = made.rows("train")
    assert (len(rows.cache), len(rows.packed)) == (2, 2)
    assert rows.tally == {"packed": 2, "misplaced": 1, "empty": 1}
    assert len(list(made.questions("train"))) == 3
    with pytest.raises(UserError, match=r"no question of 1 is left: .'misplaced': 1, 'empty': 0"):
        data(f"jsonl:{write(path, [bad])}", tmp_path, misplaced="skip").rows("train")
    with pytest.raises(MisplacedAnswer):
        data(f"jsonl:{path}", tmp_path).rows("train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"stride": 46},
            "stride: 46; expected 1 to 45, what sequence_length 64 leaves beside question_length 16",
        ),
        ({"stride": 0}, "stride: 0; expected 1 to 45"),
        ({"question_length": 0}, "question_length: 0; expected at least 1"),
    ],
)
def test_windows_that_would_leave_gaps_are_refused(tmp_path, changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        data("function_questions", tmp_path, **changes)


ASKED = {"question": "a?", "answers": []}


def test_squad_s_own_files_hold_the_same_questions(tmp_path, rng):
    records = records_of(rng)
    paragraphs = {}
    for number, record in enumerate(records):
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(*record["answers"].values(), strict=True)
        ]
        asked = {
            "question": record["question"],
            "answers": answers,
            "id": number,
            "is_impossible": not answers,
        }
        paragraphs.setdefault(record["context"], []).append(asked)
    paragraphs = [{"context": context, "qas": asked} for context, asked in paragraphs.items()]
    whole = {
        "version": "x",
        "data": [{"title": "t", "paragraphs": part} for part in (paragraphs[:7], paragraphs[7:])],
    }
    (tmp_path / "a.json").write_text(json.dumps(whole, indent=1))
    expected = data(f"jsonl:{write(tmp_path / 'a.jsonl', records)}", tmp_path)
    found = data(f"squad:{tmp_path}/a.json", tmp_path)
    assert list(found.questions("train")) == list(expected.questions("train"))
    parts = {
        split: {
            q.context
            for q in data(f"squad:{tmp_path}/a.json", tmp_path, validation_source="").questions(split)
        }
        for split in ("train", "validation")
    }
    assert all(parts.values()) and not parts["train"] & parts["validation"]

    for broken, message in [
        ("{\n[", r"a\.json:2: not JSON \("),
        (
            '{"data": [{"paragraphs": [{"context": "x"}]}]}',
            r"a\.json: article 1, paragraph 1 has no 'qas'; expected SQuAD's, data > ",
        ),
        (
            '{"data": [{"paragraphs": []}, {"paragraphs": [{"context": "x", "qas": [{}]}]}]}',
            r"a\.json: article 2, paragraph 1, question 1 has no 'question'; expected SQuAD's",
        ),
        ('{"data": [{"paragraphs": []}, 3]}', r"a\.json: article 2 has another form; expected SQuAD's"),
        ("[1]", r"a\.json: the whole has another form; expected SQuAD's"),
        (
            json.dumps({"data": [{"paragraphs": [{"context": "\ud83d", "qas": [ASKED]}]}]}),
            r"a\.json: question '1': half of a surrogate pair in 'context'$",
        ),
    ]:
        (tmp_path / "a.json").write_text(broken)
        with pytest.raises(UserError, match=message):
            data(f"squad:{tmp_path}/a.json", tmp_path).rows("train")
    whole["data"][0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "nowhere", "answer_start": 0}]
    (tmp_path / "a.json").write_text(json.dumps(whole))
    with pytest.raises(
        UserError, match=r"a\.json: question '0': at character 0 is .*, not the answer 'nowhere'$"
    ):
        data(f"squad:{tmp_path}/a.json", tmp_path).rows("train")


BUILDER = """
    import tensorflow_datasets as tfds

    class TinySquad(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            answers = tfds.features.Sequence({"text": tfds.features.Text(), "answer_start": np.int32})
            text = {name: tfds.features.Text() for name in ("id", "title", "context", "question")}
            features = tfds.features.FeaturesDict(text | {"answers": answers})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples() for split in ("train", "validation", "test")}

        def _generate_examples(self):
            for number, record in enumerate(RECORDS):
                answers = record["answers"]
                yield number, record | {"answers": answers, "id": str(number), "title": "t"}
"""


def test_tfds_has_the_same_questions(tmp_path, rng):
    records = records_of(rng)
    exec(textwrap.dedent(BUILDER), {"__name__": "tiny_squad", "np": np, "RECORDS": records})
    found = data("tfds:tiny_squad", tmp_path, validation_source="")
    expected = data(f"jsonl:{write(tmp_path / 'a.jsonl', records)}", tmp_path)
    assert sorted(map(repr, found.questions("train"))) == sorted(map(repr, expected.questions("train")))
    assert len(found.rows("train").packed) == len(expected.rows("train").packed)


def test_what_is_asked_of_a_function():
    text = ast.unparse(
        ast.parse(
            textwrap.dedent("""
                def load(path, *, 日本='é', limit=4 ** 2, other=()):
                    def inner(x):
                        raise KeyError(x)
                    if not path.exists():
                        raise FileNotFoundError(path)
                    try:
                        whole = path.read_text()
                    except (OSError, ValueError):
                        whole = None
                    for line in whole.splitlines():
                        pass
                    return [line, 日本]
            """)
        )
    )
    found = dict(ask(text))
    default = [key for key in found if key.startswith("What is the default")]
    expected = {
        "What is the default of limit?": ["4 ** 2"],
        "What is the default of 日本?": ["'é'"],
        "What does load return?": ["[line, 日本]"],
        "Which exception does load raise?": ["FileNotFoundError"],
        "When does load raise FileNotFoundError?": ["not path.exists()"],
        "Which exception does load catch?": ["(OSError, ValueError)"],
        "What does the loop over line go through?": ["whole.splitlines()"],
    }
    assert len(default) == 1 and len(found) == len(expected) - 1  # of each kind one; `whole` has two values
    for question, answers in found.items():
        assert answers["text"] == expected[question]
        (start,) = answers["answer_start"]
        assert text[start : start + len(answers["text"][0])] == answers["text"][0]


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_the_embedded_questions_are_sound_and_divide_without_overlap():
    contexts, fields = {}, SpanDataConfig().fields
    for split in ("train", "validation", "test"):
        source = open_source("function_questions", split, field="context")
        contexts[split] = set()
        for index in range(0, len(source), 7):
            question = Question.read(source[index], fields, functools.partial(source.place, index))
            assert set(question.references) == {source[index]["answer"]} and question.references[0]
            contexts[split].add(question.context)
    assert min(map(len, contexts.values())) > 50 and len(contexts["train"]) > 1000
    assert not (contexts["train"] & contexts["validation"] or contexts["train"] & contexts["test"])


def test_a_line_is_read_back(tmp_path, rng):
    made = data("function_questions", tmp_path)
    for _ in range(50):
        question, context = ("".join(rng.choice(list("a\\nrt\n\r\té"), 12)) for _ in range(2))
        line = f"{escape(question)}\t{escape(context)}"
        assert "\n" not in line and "\r" not in line
        assert made.parse(line) == (question, context)
    assert made.parse("q\tfirst\tsecond \\x") == ("q", "first\tsecond \\x")
    with pytest.raises(UserError, match="no tab; expected QUESTION, a tab"):
        made.parse("q, and then spaces")
