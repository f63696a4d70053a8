import json
import random
import string

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from transformer.data.chat.chat import ChatData, ChatDataConfig, PackedSequences
from transformer.data.chat.chat_template import PLAIN, ChatTemplate, conversation
from transformer.data.chat.chat_tokens import ChatTokens
from transformer.data.chat.preferences import PreferenceData, PreferenceDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message['content'] | trim }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A template in the manner of ChatML, which marks what the assistant says."""

TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "  what is 1 + 1? "},
    {"role": "assistant", "content": "2, größer als 1 🙂"},
    {"role": "user", "content": "and 2 + 2?"},
    {"role": "assistant", "content": "4"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes, and the special tokens of `CHATML`."""
    backend = Tokenizer.train("bytes").backend
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    """Llama 2's kind of tokenizer, which starts every text with a space."""
    letters = {letter: i for i, letter in enumerate(["<0x0A>", *"▁", *map(chr, range(33, 127)), *"größ🙂"])}
    words = ["as", "ass", "an", "ant", "is", "▁a", "▁is"]
    merges = [("a", "s"), ("as", "s"), ("a", "n"), ("an", "t"), ("i", "s"), ("▁", "a"), ("▁", "is")]
    ids = {name: i for i, name in enumerate(dict.fromkeys([*letters, *words]))}
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Tokenizer(backend)


def talks(count: int, seed: str) -> list[list[dict]]:
    draw = random.Random(seed)

    def text() -> str:
        return "".join(draw.choices(string.ascii_letters + " ä", k=draw.randint(1, 12))) + "."

    return [
        [
            {"role": role, "content": text()}
            for _ in range(draw.randint(1, 3))
            for role in ("user", "assistant")
        ]
        for _ in range(count)
    ]


def test_the_plain_template_ends_every_message_with_the_end_token():
    tokenizer = Tokenizer.train("bytes")
    chat = ChatTokens(tokenizer, ChatTemplate())
    ids, answers = chat.encode(TALK[1:3])
    end = tokenizer.eos_id
    said = [end, *b"user:\n  what is 1 + 1? ", end, *b"\nassistant:\n"]
    assert chat.end_id == end
    assert ids.tolist() == [*said, *TALK[2]["content"].encode(), end]
    assert answers.tolist() == [False] * len(said) + [True] * (len(ids) - len(said))
    assert chat.prompt(TALK[1:2]) == said


@pytest.mark.parametrize("special", [{}, {"bos_token": "<|im_start|>"}])
def test_a_start_token_that_is_not_named_is_empty_in_a_template(tokenizer, tmp_path, special):
    transformers = pytest.importorskip("transformers")
    special = {"eos_token": "<|im_end|>"} | special
    source = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    tokenizer.save(tmp_path / "tokenizer.json")
    peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), **special)
    chat = ChatTokens(Tokenizer(tokenizer.backend, special), ChatTemplate(source))
    expected = peer.apply_chat_template(TALK, chat_template=source, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    assert chat.encode(TALK)[0].tolist() == expected


@pytest.mark.parametrize(
    "part",
    [
        "{{ 'no tools' if tools is none else 'tools' }}{{ documents is none }}",
        "{{ messages[0] | tojson }}{{ messages[1] | tojson(indent=2) }}",
        "{{ messages[2] | tojson(separators=(',', ':'), sort_keys=true) }}{{ messages[0] | tojson(true) }}",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}  {{ m.content }}{% endfor %}",
        "{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}",
        "{% if strftime_now is defined %}{% endif %}{{ messages | map(attribute='role') | join(', ') }}",
    ],
)
def test_a_template_has_what_it_has_in_transformers(tokenizer, tmp_path, part):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    talk = [*TALK, {"role": "user", "content": "größer <b>&</b> 'als'?"}]
    expected = peer.apply_chat_template(talk, chat_template=part, tokenize=False)
    assert ChatTemplate(part).render(talk) == expected


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_tokens_and_answers_are_those_of_transformers(tokenizer, pieces, tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    tokenizer = pieces if kind == "pieces" else tokenizer
    tokenizer.save(tmp_path / "tokenizer.json")
    peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    peer.chat_template = CHATML
    options = {"tokenize": True, "return_dict": True}
    found = peer.apply_chat_template(TALK, return_assistant_tokens_mask=True, **options)
    chat = ChatTokens(tokenizer, ChatTemplate(CHATML))
    ids, answers = chat.encode(TALK)
    assert chat.end_id == tokenizer.find("<|im_end|>")
    assert ids.tolist() == found["input_ids"][: len(ids)]
    after = tokenizer.backend.decode(found["input_ids"][len(ids) :])
    assert not after.strip()  # the line break after the last end
    assert answers.tolist() == [bool(each) for each in found["assistant_masks"][: len(ids)]]
    asked = peer.apply_chat_template(TALK[:4], add_generation_prompt=True, **options)["input_ids"]
    assert chat.prompt(TALK[:4]) == asked


@pytest.mark.parametrize("source", [PLAIN, CHATML])
@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_prompt_is_what_training_has_before_an_answer(tokenizer, pieces, source, kind):
    chat = ChatTokens(pieces if kind == "pieces" else tokenizer, ChatTemplate(source))
    for talk in talks(20, source):
        ids, answers = chat.encode(talk)
        begins = np.flatnonzero(answers & ~np.roll(answers, 1))
        asked = [i for i, message in enumerate(talk) if message["role"] == "assistant"]
        assert len(begins) == len(asked)
        for begin, i in zip(begins, asked, strict=True):
            assert chat.prompt(talk[:i]) == ids[:begin].tolist()
        last = chat.encode(talk, last_only=True)[1]
        assert np.flatnonzero(last).tolist() == [*range(begins[-1], len(ids))]


def test_an_answer_ends_after_its_text_though_special_tokens_are_before_it(tokenizer):
    template = CHATML.replace("{% generation %}", "{% generation %}<|im_start|>")
    chat = ChatTokens(tokenizer, ChatTemplate(template))
    start, end = map(tokenizer.find, ("<|im_start|>", "<|im_end|>"))
    ids, answers = chat.encode(TALK[1:3])
    assert chat.end_id == end
    assert ids[answers].tolist() == [start, *TALK[2]["content"].encode(), end]


def test_a_template_is_kept_with_the_tokenizer(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    assert not (tmp_path / "tokenizer_config.json").exists()
    settings = {"chat_template": CHATML, "eos_token": {"content": "<|im_end|>"}, "other": 1}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    talk = [TALK[1], TALK[2]]
    source = write(tmp_path, [{"messages": talk}] * 3)

    def data(name: str = "auto") -> ChatData:
        config = ChatDataConfig(
            source=source,
            tokenizer=f"{tmp_path}/tokenizer.json",
            template=name,
            cache_dir=f"{tmp_path}/cache",
        )
        return ChatData(config)

    ours = data()
    assert ours.chat.template.source == CHATML
    assert ours.chat.template.tokens["eos_token"] == "<|im_end|>"
    assert data("plain").chat.template.source == PLAIN
    (tmp_path / "kept").mkdir()
    ours.kept()["tokenizer"].save(tmp_path / "kept" / "tokenizer.json")
    kept = ChatData(ours.config, Tokenizer.load(tmp_path / "kept" / "tokenizer.json"))
    assert kept.chat.identity == ours.chat.identity
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "default", "template": "x"}]}'
    )
    assert Tokenizer.load(tmp_path / "tokenizer.json").chat_template == "x"
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert data().chat.template.source == CHATML
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").unlink()
    assert data().chat.template.source == PLAIN
    (tmp_path / "own.jinja").write_text(CHATML)
    assert data(f"{tmp_path}/own.jinja").chat.template.source == CHATML


REWRITING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] | trim }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template in the manner of Qwen3, which drops the reasoning of earlier answers."""


def test_where_a_template_rewrites_earlier_answers_each_is_learned_as_it_is_written(tokenizer, tmp_path):
    """As many examples as answers to learn, each after the prompt that prediction would have."""
    chat, end = ChatTokens(tokenizer, ChatTemplate(REWRITING)), tokenizer.backend.token_to_id("<|im_end|>")
    talk = [
        message
        for n in range(3)
        for message in (
            {"role": "user", "content": f"question {n}"},
            {"role": "assistant", "content": f"<think>why {n}</think> answer {n}"},
        )
    ]
    talk[3]["weight"] = 0
    for last_only in (False, True):
        found = [*chat.examples(talk, last_only)]
        assert len(found) == (1 if last_only else 2)
        for (ids, marks), i in zip(found, [5] if last_only else [1, 5], strict=True):
            prompt = chat.prompt(talk[:i])
            assert ids[: len(prompt)].tolist() == prompt and not marks[: len(prompt)].any()
            assert marks[len(prompt) :].all() and ids[-1] == end
            assert tokenizer.decode(ids[len(prompt) : -1].tolist()) == talk[i]["content"]
            assert ("why" in tokenizer.decode(prompt)) is False
    with pytest.raises(UserError, match="writes earlier messages otherwise"):
        chat.encode(talk)
    plain = ChatTokens(tokenizer, ChatTemplate())
    ((ids, marks),) = plain.examples(talk)
    assert ids.tolist() == plain.encode(talk)[0].tolist() and marks.sum() == plain.encode(talk)[1].sum()
    file, template = tmp_path / "a.jsonl", tmp_path / "t.jinja"
    file.write_text("".join(json.dumps({"messages": talk[: 2 * n]}) + "\n" for n in (1, 3, 1)))
    template.write_text(REWRITING)
    tokenizer.save(tmp_path / "tokenizer.json")
    keys = {
        "source": f"jsonl:{file}",
        "tokenizer": str(tmp_path / "tokenizer.json"),
        "template": str(template),
    }
    data = ChatData(ChatDataConfig(**keys, validation_source=f"jsonl:{file}", sequence_length=400))
    sequences, rows = data.sequences("train"), data.rows("train")
    assert sequences.records.tolist() == [0, 1, 1, 2] and rows.records == 4
    numbers = np.concatenate(rows.documents(np.arange(len(rows))))
    assert sorted(numbers.tolist()) == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ ''.__class__.__mro__ }}", "the chat template refuses it: access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "the chat template refuses it: access to attribute 'append'"),
        ("{{ 'a' * 10 ** 9 }}", "refuses it"),
        ("{{ 2 ** 100000 }}", "large exponent"),
        ("{% for i in range(10 ** 6) %}a{% endfor %}", "Range too big"),
        ("{{ raise_exception('roles must alternate') }}", "refuses it: roles must alternate"),
        ("{{ messages[7].content }}", "refuses it"),
        ("\n{% if %}", "line 2 of the chat template: Expected an expression"),
        ("{{ messages | length }}", "writes earlier messages otherwise"),
        (
            "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}",
            "ends answers with no special token",
        ),
    ],
)
def test_a_template_that_cannot_serve_is_refused(tokenizer, source, why):
    with pytest.raises(UserError) as error:
        ChatTokens(tokenizer, ChatTemplate(source))
    assert why in str(error.value) and "\n" not in str(error.value)


def test_the_file_of_a_template_is_checked(tmp_path):
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / "c.json").write_text("{")
    for name, why in {
        "b.json": "no chat template in it",
        "c.json": "cannot be read (Expecting property name",
        "d.jinja": "cannot be read (No such file or directory)",
    }.items():
        with pytest.raises(UserError, match=name) as error:
            ChatTemplate.read(tmp_path / name)
        assert why in str(error.value)


def write(folder, records: list) -> str:
    lines = (each if isinstance(each, str) else json.dumps(each) for each in records)
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    return f"jsonl:{folder}/a.jsonl"


def chat_data(folder, records: list, **keys) -> ChatData:
    config = ChatDataConfig(
        source=write(folder, records),
        validation_source=f"jsonl:{folder}/a.jsonl",
        tokenizer="bytes",
        cache_dir=f"{folder}/cache",
        **keys,
    )
    return ChatData(config)


ANSWER = {"role": "assistant", "content": "b"}
GOOD = {"messages": [{"role": "user", "content": "a"}, ANSWER]}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("{", "not JSON"),
        ({"texts": []}, "no field 'messages'"),
        ({"messages": []}, "expected messages, each with role and content; found []"),
        ({"messages": "a question"}, "expected messages, each with role and content; found 'a question'"),
        ({"messages": None}, "null, not text, in 'messages'; fields there: messages"),
        ({"messages": "[1"}, "expected messages, each with role and content; found '[1'"),
        (
            {"messages": [{"role": "user", "content": "\ud83d"}, ANSWER]},
            "message 1: half of a surrogate pair",
        ),
        ({"messages": [{"role": "user", "content": "a"}]}, "no answer to learn"),
        (
            {"messages": [{"role": "robot", "content": "a"}]},
            "message 1: role 'robot'; expected one of",
        ),
        ({"messages": [*GOOD["messages"], {"role": "user"}]}, "message 3: expected role and content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "message 1: a part of the content is 'a'"),
        ({"messages": [{"role": "assistant", "content": " "}]}, "message 1: the answer is empty"),
        (
            {"messages": [{"role": "user", "content": "<|endoftext|>"}, GOOD["messages"][1]]},
            "a special token",
        ),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(tmp_path, record, why):
    with pytest.raises(UserError) as error:
        chat_data(tmp_path, [GOOD, record, GOOD]).rows("train")
    assert f"{tmp_path}/a.jsonl:2: " in str(error.value) and why in str(error.value)
    assert "\n" not in str(error.value) and str(error.value).count("a.jsonl") == 1


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"prompt": "a", "chosen": "b"}, "no field 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": " "}, "the answer is empty"),
        ({"prompt": GOOD["messages"], "chosen": "b", "rejected": "c"}, "the prompt ends with an answer"),
        ({"prompt": "x", "chosen": GOOD["messages"], "rejected": "c"}, "2 messages as an answer"),
        ({"prompt": "a", "chosen": "b", "rejected": [GOOD["messages"][0]] * 2}, "2 messages as an answer"),
        ({"chosen": "b", "rejected": GOOD["messages"]}, "no message before the chosen answer"),
        ({"chosen": GOOD["messages"], "rejected": [*GOOD["messages"], ANSWER]}, "3 messages as an answer"),
        ({"prompt": 3, "chosen": "b", "rejected": "c"}, "int, not text, in 'prompt'"),
    ],
)
def test_a_bad_preference_is_refused_by_file_and_line(tmp_path, record, why):
    good = {"prompt": "a", "chosen": GOOD["messages"], "rejected": "c"}
    source = write(tmp_path, [good, record])
    keys = {"source": source, "validation_source": source, "tokenizer": "bytes", "cache_dir": f"{tmp_path}/c"}
    keys |= {} if "prompt" in record else {"prompt_field": ""}
    with pytest.raises(UserError) as error:
        PreferenceData(PreferenceDataConfig(**keys)).rows("train")
    assert f"{tmp_path}/a.jsonl:2: " in str(error.value) and why in str(error.value)


def preferences(folder, records, **keys):
    """The conversations of the first record."""
    source = write(folder, records)
    keys |= {"source": source, "validation_source": source, "tokenizer": "bytes", "cache_dir": f"{folder}/c"}
    return PreferenceData(PreferenceDataConfig(**keys)).source("train").conversations(0)


@pytest.mark.parametrize(
    "text", ['[{"role": "user", "content": "x"}]', '{"role": "user", "content": "x"}', "[1]"]
)
def test_a_text_of_a_preference_is_a_text(tmp_path, text):
    """What it looks like does not matter, in a prompt or an answer."""
    found = preferences(tmp_path, [{"prompt": text, "chosen": f"{text}!", "rejected": text}])
    assert [[message["content"] for message in each] for each in found] == [[text, f"{text}!"], [text, text]]
    assert [message["role"] for message in found[0]] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected"),
    [
        ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "good"}, {"content": "bad"}),
        ({"content": "hi"}, {"content": "good", "score": 9.5}, {"role": None, "content": "bad"}),
        (
            [{"from": "human", "value": "hi"}],
            {"from": "gpt", "value": "good"},
            [{"from": "gpt", "value": "bad"}],
        ),
        ({"from": "human", "value": "hi"}, "good", "bad"),
    ],
)
def test_objects_of_a_preference_are_messages(tmp_path, prompt, chosen, rejected):
    found = preferences(tmp_path, [{"prompt": prompt, "chosen": chosen, "rejected": rejected}])
    wanted = [[("user", "hi"), ("assistant", answer)] for answer in ("good", "bad")]
    assert [[(each["role"], each["content"]) for each in talk] for talk in found] == wanted
    with pytest.raises(
        UserError, match=r"a\.jsonl:1: an answer is a message of the user; expected one of the as"
    ):
        preferences(
            tmp_path, [{"prompt": prompt, "chosen": {"role": "user", "content": "x"}, "rejected": "y"}]
        )


@pytest.mark.parametrize("unlearned", [{"weight": 0}, {"weight": 0.0}, {"train": False}])
def test_an_answer_without_weight_is_read_and_not_learned(tmp_path, unlearned):
    def learned(first, second):
        talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "WRONG"} | first]
        talk += [{"role": "user", "content": "no"}, {"role": "assistant", "content": "RIGHT"} | second]
        data = chat_data(tmp_path, [{"messages": talk}])
        batch = data.rows("train").batch(np.array([0]))
        read = data.tokenizer.decode(batch["tokens"][0][batch["segments"][0] == 1])
        return read, data.tokenizer.decode(batch["targets"][0][batch["weights"][0] > 0])

    read, answers = learned({}, {"weight": 1, "train": True})
    assert "WRONG" in answers and "RIGHT" in answers
    without = learned(unlearned, {})
    assert without[0] == read and "RIGHT" in without[1] and "WRONG" not in without[1]
    last = learned({}, unlearned)
    assert "WRONG" in last[1] and "RIGHT" not in last[1]
    with pytest.raises(UserError, match=r"a\.jsonl:1: no answer to learn"):
        learned(unlearned, unlearned)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            {"tool_calls": [{"type": "function"}]},
            "message 2: tool_calls [{'type': 'function'}]; expected [{",
        ),
        ({"reasoning_content": "so"}, "message 2: reasoning_content is not read: the chat template writes"),
        ({"function_call": {"name": "f"}}, "message 2: function_call {'name': 'f'}, which is not read"),
        ({"weight": 0.5}, "message 2: weight 0.5; expected 0 or 1"),
        ({"train": "no"}, "message 2: train 'no'; expected 0 or 1"),
        ({"role": "user", "train": True}, "message 2: train True of the user; only answers are learned"),
        ({"tool_calls": [], "reasoning_content": None, "weight": None, "id": 7}, ""),
    ],
)
def test_what_a_message_says_besides_its_text_is_followed_or_refused(tmp_path, message, why):
    talk = [GOOD["messages"][0], ANSWER | message, *GOOD["messages"]]
    if not why:
        assert len(chat_data(tmp_path, [{"messages": talk}]).rows("train")) == 1
        return
    with pytest.raises(UserError) as error:
        chat_data(tmp_path, [GOOD, {"messages": talk}]).rows("train")
    assert f"{tmp_path}/a.jsonl:2: {why}" in str(error.value)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_record_with_functions_is_refused(tmp_path, kind):
    records = [GOOD | {"functions": "[]", "system": ""}, GOOD | {"functions": '[{"a": 1}]', "system": ""}]
    source = write(tmp_path, records)
    if kind == "parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(records), tmp_path / "a.parquet")
        source = f"parquet:{tmp_path}/a.parquet"
    keys = {"source": source, "validation_source": source, "tokenizer": "bytes", "cache_dir": f"{tmp_path}/c"}
    with pytest.raises(
        UserError, match=r"a\.\w+:( row )?2: 'functions' is .*, which is not read; write it into"
    ):
        ChatData(ChatDataConfig(**keys)).rows("train")


def unpacked(rows: PackedSequences) -> list[tuple[int, list, list, list]]:
    """Record, tokens, targets and weights of each segment of all rows."""
    found = []
    for row in range(len(rows)):
        batch = {name: values[0] for name, values in rows.batch(np.array([row])).items()}
        counted = batch.get("answers", batch["weights"])
        for k in range(1, batch["segments"].max() + 1):
            here = np.flatnonzero(batch["segments"] == k)
            assert here.tolist() == [*range(here[0], here[-1] + 1)]
            assert batch["positions"][here].tolist() == [*range(len(here))]
            record = PackedSequences.documents(rows, np.array([row]))[0][k - 1]
            found.append(
                (int(record), *(x[here].tolist() for x in (batch["tokens"], batch["targets"], counted)))
            )
        assert not counted[batch["segments"] == 0].any()
    return found


@pytest.mark.parametrize("too_long", ["cut", "skip"])
def test_every_conversation_is_in_one_row_with_a_loss_on_its_answers(tmp_path, too_long):
    given = talks(40, "packing")
    data = chat_data(tmp_path, [{"messages": talk} for talk in given], sequence_length=96, too_long=too_long)
    rows, seen = data.rows("train"), set()
    for record, tokens, targets, weights in unpacked(rows):
        ids, answers = data.chat.encode(given[record])
        n = min(len(ids) - 1, 96)
        assert (tokens, targets) == (ids[:n].tolist(), ids[1 : n + 1].tolist())
        assert weights == answers[1 : n + 1].tolist()
        seen.add(record)
    lengths = [len(data.chat.encode(talk)[0]) - 1 for talk in given]
    long = {i for i, length in enumerate(lengths) if length > 96}
    first = {i for i in long if data.chat.encode(given[i])[1].argmax() > 96}
    assert long - first and seen == {*range(40)} - (long if too_long == "skip" else first)
    counts = {"too long": 40 - len(seen)}
    if too_long == "cut":
        counts["truncated"] = len(long - first)
    assert rows.tally == {"packed": len(seen)} | {what: count for what, count in counts.items() if count}
    assert len(rows) < 40
    with pytest.raises(
        UserError, match=r"data.too_long: \S+a\.jsonl:1 has \d+ tokens; data.sequence_length is 8"
    ):
        chat_data(tmp_path, [GOOD], sequence_length=8, too_long="refuse").rows("train")
    with pytest.raises(UserError, match=r"^record 1 has \d+ tokens"):  # of a source without places
        PackedSequences(chat_data(tmp_path, [GOOD]).sequences("train"), 8, "refuse")


def test_a_conversation_whose_answer_is_behind_the_row_is_left_out(tmp_path):
    talks = [[{"role": "user", "content": "a" * n}, ANSWER] for n in (5, 200, 60)]
    rows = chat_data(tmp_path, [{"messages": talk} for talk in talks], sequence_length=100).rows("train")
    assert rows.records == 2 and sorted(np.concatenate(rows._rows).tolist()) == [0, 2]
    assert (
        rows.sequences.firsts.tolist()
        == (rows.sequences.offsets[1:] - rows.sequences.offsets[:-1] - 2).tolist()
    )


def test_pairs_of_equal_answers_are_counted(tmp_path):
    answers = [("yes", "no"), ("no", "no"), ("ja", "ja "), ("same", "same"), ("a", "bcd")]
    pairs = [{"prompt": "?", "chosen": one, "rejected": two} for one, two in answers]
    source = write(tmp_path, pairs)
    keys = {"source": source, "validation_source": source, "tokenizer": "bytes", "cache_dir": f"{tmp_path}/c"}
    data = PreferenceData(PreferenceDataConfig(**keys, sequence_length=400))
    assert data.equal_pairs("train") == 2


@pytest.mark.parametrize("form", ["answers", "conversations", "conversations alone"])
def test_a_pair_has_both_answers_in_one_row(tmp_path, form):
    def record(talk: list[dict]) -> dict:
        prompt, chosen = talk[:-1], talk[-1]
        if form == "answers":
            return {"prompt": prompt, "chosen": chosen["content"], "rejected": [ANSWER]}
        return {"prompt": prompt, "chosen": talk, "rejected": [*prompt, ANSWER]}

    every = talks(20, "pairs")
    source = write(tmp_path, [*map(record, every)])
    keys = {"source": source, "validation_source": source, "tokenizer": "bytes", "cache_dir": f"{tmp_path}/c"}
    keys |= {"prompt_field": ""} if form == "conversations alone" else {}
    data = PreferenceData(PreferenceDataConfig(**keys, sequence_length=400))
    reference = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    data.reference = lambda split: reference
    rows, seen = data.rows("train"), []
    for row in range(len(rows)):
        batch = rows.batch(np.array([row]))
        numbers = rows.pairs(np.array([row]))[0]
        there = numbers[numbers >= 0]
        assert batch["weights"][0].tolist() == [1.0] * len(there) + [0.0] * (200 - len(there))
        assert batch["reference"][0, : len(there)].tolist() == reference[there].tolist()
        assert batch["segments"].max() == 2 * len(there)
        seen += there.tolist()
    assert sorted(seen) == [*range(20)]
    for place, (record, tokens, targets, answers) in enumerate(unpacked(rows)):
        *prompt, chosen = every[record]
        ids, marks = data.chat.encode([*prompt, ANSWER if place % 2 else chosen], last_only=True)
        assert [tokens[0], *targets] == ids.tolist() and answers == marks[1:].tolist()
    blank = data.blank()
    assert {name: (x.shape, x.dtype) for name, x in rows.batch(np.array([-1])).items()} == {
        name: (x.shape, x.dtype) for name, x in blank.items()
    }


def test_a_text_is_a_message_and_json_a_conversation():
    assert conversation("[1, 2] is a list") == [{"role": "user", "content": "[1, 2] is a list"}]
    assert conversation("[1, 2]") == [{"role": "user", "content": "[1, 2]"}]
    assert conversation("[" * 9999) == [{"role": "user", "content": "[" * 9999}]
    assert conversation(json.dumps(TALK)) == TALK == conversation(json.dumps({"messages": TALK}))
    with pytest.raises(UserError, match="message 1: expected role and content"):
        conversation('[{"role": "user"}]')
