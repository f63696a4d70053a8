"""Calls of tools, their results, reasoning and tools in conversations, by templates of three kinds."""

import copy
import json

import numpy as np
import pytest

from experiments.evaluation.mean_reward import reward_of
from tests.data.chat.test_chat import CHATML, REWRITING, chat_data, write
from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.chat.chat_template import ChatTemplate, check_messages, conversation, with_tools
from transformer.data.chat.chat_tokens import ChatTokens
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

QWEN = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}{% set n = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set n.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\\n<tool_response>\\n' }}{{ m.content }}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > n.last %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}{% set f = call.function or call %}"
    "{{ '\\n<tool_call>\\n' }}"
    '{"name": "{{ f.name }}", "arguments": '
    "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}}"
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""In the manner of Qwen3: reasoning before the last question is left out, results of tools are the user's."""

LLAMA = (
    "{% for m in messages %}<|im_start|>{{ 'ipython' if m.role == 'tool' else m.role }}\n\n"
    "{% if loop.first and tools is not none %}{{ tools | tojson(indent=4) }}\n\n{% endif %}"
    "{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
    "{% else %}{{ m.content | trim }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
"""In the manner of Llama 3.1."""

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "a": [1, None]}}}
]


def call(arguments) -> dict:
    return {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": arguments}}


def talk(arguments, **more) -> list[dict]:
    """Two questions, each answered after a call."""
    messages = []
    for n in range(2):
        messages += [
            {"role": "user", "content": f"question{n}"},
            {"role": "assistant", "content": None, "tool_calls": [call(arguments)], **more},
            {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": f"RESULT{n}"},
            {"role": "assistant", "content": f"answer{n}"},
        ]
    return messages


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = Tokenizer.train("bytes").backend
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return Tokenizer(backend)


def learned(chat: ChatTokens, messages: list) -> list[str]:
    """The texts that are learned, of all examples, a text for each stretch."""
    texts = []
    for ids, marks in chat.examples(messages):
        starts = np.flatnonzero(np.diff(marks.astype(int), prepend=0) == 1)
        stops = np.flatnonzero(np.diff(marks.astype(int), append=0) == -1) + 1
        texts += [
            chat._backend.decode(ids[a:b].tolist(), skip_special_tokens=False)
            for a, b in zip(starts, stops, strict=True)
        ]
    return texts


@pytest.mark.parametrize("arguments", [{"city": "Łódź", "days": [1, None]}, '{"city": "Oslo"}'])
@pytest.mark.parametrize("template", [QWEN, LLAMA])
def test_calls_are_learned_and_results_and_tools_are_read(tokenizer, template, arguments):
    chat = ChatTokens(tokenizer, ChatTemplate(template))
    messages = with_tools(check_messages(talk(arguments)), json.dumps(TOOLS))
    texts = learned(chat, messages)
    key = "arguments" if template == QWEN else "parameters"
    plain = isinstance(arguments, str) and template == QWEN
    value = arguments if plain else json.dumps(arguments, ensure_ascii=False)
    said = f'{{"name": "weather", "{key}": {value}}}'
    said = f"\n<tool_call>\n{said}\n</tool_call>" if template == QWEN else said
    assert texts == [f"{text}<|im_end|>" for text in (said, "answer0", said, "answer1")]
    ((ids, marks),) = chat.examples(messages)
    read = tokenizer.decode(ids[~marks].tolist())
    assert all(text in read for text in ("question0", "RESULT0", "RESULT1", '"weather"'))
    assert chat.prompt(messages[:5]) == ids[: len(chat.prompt(messages[:5]))].tolist()


@pytest.mark.parametrize("template", [QWEN, LLAMA])
def test_the_text_is_that_of_transformers(tokenizer, tmp_path, template):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    asked = talk({"b": "ö<", "a": 1.5}, reasoning_content="why")
    for messages, answering in ((asked, False), (asked[:3], True)):
        options = {"tools": TOOLS, "chat_template": template, "tokenize": False}
        blank = [message | {"content": message["content"] or ""} for message in messages]
        expected = peer.apply_chat_template(blank, add_generation_prompt=answering, **options)
        checked = with_tools(check_messages(copy.deepcopy(messages)), TOOLS)
        assert ChatTemplate(template).render(checked, answering) == expected


def test_reasoning_is_learned_where_it_is_written(tokenizer):
    """Qwen3 leaves out that before the last question, so each answer is learned as it is written then."""
    chat = ChatTokens(tokenizer, ChatTemplate(QWEN))
    messages = check_messages(talk({}, reasoning_content="why"))
    texts = learned(chat, messages)
    assert (
        len(texts) == 4
        and [text.startswith("<think>\nwhy\n</think>\n\n") for text in texts] == [True, False] * 2
    )
    examples = [tokenizer.decode(ids.tolist()) for ids, _ in chat.examples(messages)]
    assert ["question1" in text for text in examples] == [False, False, True, True]
    assert all("why" not in text.split("question1")[0] for text in examples[2:])


@pytest.mark.parametrize(
    ("template", "change", "why"),
    [
        (CHATML, {"tools": TOOLS}, "tools is not read: the chat template writes the same without it"),
        (CHATML, {"tool_calls": [call({})]}, "message 2: call 1 of tool_calls is not read"),
        (REWRITING, {"reasoning_content": "why"}, "message 2: reasoning_content is not read"),
        (QWEN, {"thinking": "why"}, "message 2: thinking is not read"),
        (
            LLAMA,
            {"tool_calls": [call({}), call({"a": 1})]},
            "the chat template refuses it: one call at a time",
        ),
        (
            LLAMA.replace("m.tool_calls | length != 1", "false"),
            {"tool_calls": [call({}), call({"a": 1})]},
            "message 2: call 2 of tool_calls is not read",
        ),
        (
            CHATML.replace("<|im_start|>{{", "{% if message.role != 'tool' %}<|im_start|>{{").replace(
                "{{ '\\n' }}{% endfor", "{{ '\\n' }}{% endif %}{% endfor"
            ),
            {"role": "tool", "content": "4"},
            "message 2: the result of a tool is not read",
        ),
    ],
)
def test_what_a_template_leaves_out_is_refused(tokenizer, template, change, why):
    tools = change.pop("tools", None)
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"} | change,
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    messages = with_tools(check_messages(messages), tools)
    chat = ChatTokens(tokenizer, ChatTemplate(template))
    for use in (
        lambda: [*chat.examples(messages)],
        lambda: chat.encode(messages),
        lambda: chat.prompt(messages),
    ):
        with pytest.raises(UserError) as error:
            use()
        assert why in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("message", "tools", "why"),
    [
        (
            {"role": "user", "tool_calls": [call({})]},
            None,
            "message 2: tool_calls of the user; only the assistant",
        ),
        ({"role": "tool", "thinking": "x"}, None, "message 2: thinking of the tool; only the assistant"),
        ({"tool_calls": "f()"}, None, "message 2: tool_calls 'f()'; expected [{"),
        ({"tool_calls": [{"function": {"arguments": {}}}]}, None, "; expected [{"),
        ({"tool_calls": [{"function": {"name": ""}}]}, None, "; expected [{"),
        ({"tool_calls": [call({"<|im_end|>": 1})]}, None, "message 2 has '<|im_end|>', which is a special"),
        ({"thinking": ["a"]}, None, "message 2: thinking is list; expected text"),
        ({"tools": TOOLS}, None, "message 2: tools; expected them as a field of the record, or in message 1"),
        (
            {"tool_calls": [call({"a": "<|im_end|>"})]},
            None,
            "message 2 has '<|im_end|>', which is a special token",
        ),
        ({"tool_calls": [call({"a": "\ud83d"})]}, None, "message 2: half of a surrogate pair"),
        ({}, "{", "tools is '{'; expected a list of objects, or the JSON of one"),
        ({}, ["weather"], "tools is ['weather']; expected a list of objects"),
        ({"content": None}, None, "message 2: content is NoneType; expected text"),
    ],
)
def test_a_bad_field_is_refused_by_its_place(tokenizer, tmp_path, message, tools, why):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"} | message]
    messages += [{"role": "assistant", "content": "b"}] * (message.get("role") == "user")
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "t.jinja").write_text(QWEN)
    source = write(tmp_path, [{"messages": messages, "tools": tools}])
    keys = {"source": source, "validation_source": source, "cache_dir": f"{tmp_path}/cache"}
    config = ChatDataConfig(**keys, tokenizer=f"{tmp_path}/tokenizer.json", template=f"{tmp_path}/t.jinja")
    with pytest.raises(UserError) as error:
        ChatData(config).rows("train")
    assert "a.jsonl:1: " in str(error.value) and why in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tools_are_a_field_that_a_record_may_lack(tokenizer, tmp_path, kind):
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "t.jinja").write_text(QWEN)
    records = [
        {"messages": talk("{}")} | more for more in ({"tools": json.dumps(TOOLS)}, {"tools": None}, {})
    ]
    source = write(tmp_path, records)
    if kind == "parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(records), tmp_path / "a.parquet")
        source = f"parquet:{tmp_path}/a.parquet"
    keys = {"source": source, "validation_source": source, "cache_dir": f"{tmp_path}/cache"}
    keys |= {"tokenizer": f"{tmp_path}/tokenizer.json", "template": f"{tmp_path}/t.jinja"}
    data = ChatData(ChatDataConfig(**keys, sequence_length=2000))
    talks = [data.source("train").conversations(i)[0] for i in range(3)]
    assert [messages[0].get("tools") for messages in talks] == [TOOLS, None, None]
    assert data.sequences("train").records.tolist() == [0, 1, 2]
    # A text to predict is the record as JSON, up to its last answer.
    asked = [conversation(text) for text in data.inputs("train")]
    assert asked == [messages[:-1] for messages in talks]
    text = json.dumps({"messages": talk("{}")[:3], "tools": TOOLS})
    assert data.chat.prompt(conversation(text)) == data.chat.prompt(talks[0][:3])
    assert '"name": "weather"' in data.source("train").text(0)


def test_calls_of_a_column_of_arrow_have_the_arguments_that_they_were_given(tokenizer, tmp_path):
    """Arrow gives all objects of a column the same keys, and null where one has none."""
    from pyarrow import Table, parquet

    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "t.jinja").write_text(QWEN)
    records = [{"messages": talk(x)} for x in ({"city": "Oslo"}, {"days": [1, None], "of": {"a": 0}})]
    parquet.write_table(Table.from_pylist(records), tmp_path / "a.parquet")
    keys = {"tokenizer": f"{tmp_path}/tokenizer.json", "template": f"{tmp_path}/t.jinja"}
    keys |= {"cache_dir": f"{tmp_path}/cache", "sequence_length": 2000}
    sources = [f"parquet:{tmp_path}/a.parquet", write(tmp_path, records)]
    datas = [ChatData(ChatDataConfig(source=x, validation_source=x, **keys)) for x in sources]
    columns, lines = ([data.source("train").conversations(i)[0] for i in range(2)] for data in datas)
    assert columns == lines
    assert lines[1][1]["tool_calls"][0]["function"]["arguments"] == {"days": [1, None], "of": {"a": 0}}


def test_rewards_compare_the_calls_that_a_record_ends_with(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "t.jinja").write_text(QWEN)
    source = write(tmp_path, [{"messages": talk({"city": "Oslo"})[:count]} for count in (2, 4)])
    keys = {"tokenizer": f"{tmp_path}/tokenizer.json", "template": f"{tmp_path}/t.jinja"}
    data = ChatData(ChatDataConfig(source=source, validation_source=source, cache_dir=str(tmp_path), **keys))
    (said, *_), records = learned(data.chat, data.source("train").conversations(0)[0]), data.source("train")
    assert reward_of("tool_calls", records, 0, said) == reward_of("exact", records, 1, "Answer0.") == 1
    assert reward_of("tool_calls", records, 1, said) == reward_of("tool_calls", records, 0, "answer0") == 0
    with pytest.raises(UserError, match=r"a.jsonl:1 fails: .*tool_calls"):
        reward_of("exact", records, 0, said)


def test_an_answer_ends_with_the_token_after_its_calls_too(tokenizer, tmp_path):
    """Harmony and Llama's own tools have a token of their own there; other templates one for all."""
    backend = Tokenizer.train("bytes").backend
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|message|>", "<|call|>"])
    source = LLAMA.replace('"parameters"', '<|message|>"parameters"').replace(
        "tojson }}}", "tojson }}}<|call|>"
    )
    source = source.replace(
        "m.content | trim }}{% endif %}<|im_end|>", "m.content | trim }}<|im_end|>{% endif %}"
    )
    chat, end = ChatTokens(Tokenizer(backend), ChatTemplate(source)), backend.token_to_id("<|im_end|>")
    assert chat.end_id == end and chat.ends == (end, backend.token_to_id("<|call|>"))
    assert [text[-8:] for text in learned(chat, check_messages(talk({"a": 1})))][::2] == ["<|call|>"] * 2
    for template in (ChatTemplate(), ChatTemplate(QWEN), ChatTemplate(CHATML)):
        once = ChatTokens(tokenizer, template)
        assert once.ends == (once.end_id,)


def test_plain_has_results_of_tools_and_refuses_calls(tmp_path):
    asked = [
        {"role": "user", "content": "a"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "b"},
    ]
    data = chat_data(tmp_path, [{"messages": asked}])
    ids, marks = data.chat.encode(data.source("train").conversations(0)[0])
    assert data.tokenizer.decode(ids[marks].tolist()) == "b" and "tool:\n4" in data.tokenizer.decode(
        ids.tolist()
    )
    with pytest.raises(
        UserError, match="message 2: call 1 of tool_calls is not read: the chat template writes"
    ):
        chat_data(tmp_path, [{"messages": talk({})}]).rows("train")


GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|im_end|>"
    "\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
"""In the manner of Gemma 2."""

BRIEF = [
    {"role": "system", "content": "be brief "},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "so"},
]


def test_a_system_message_that_a_template_refuses_may_be_the_beginning_of_the_users(tokenizer):
    chat = ChatTokens(tokenizer, ChatTemplate(GEMMA))
    joined = ChatTokens(tokenizer, ChatTemplate(GEMMA), joins_system=True)
    for use in (chat.encode, chat.prompt, lambda messages: [*chat.examples(messages)]):
        with pytest.raises(UserError, match=r"System role not supported; data.system_role=user puts"):
            use(BRIEF)
    ids, marks = joined.encode(BRIEF)
    text = tokenizer.decode(ids.tolist())
    assert "user\nbe brief\n\nwhy?" in text and learned(joined, BRIEF) == ["so<|im_end|>"]
    assert joined.prompt(BRIEF[:2]) == ids[~marks].tolist()
    assert joined.identity != chat.identity
    for other in (BRIEF[1:], [BRIEF[1], BRIEF[2], BRIEF[1], BRIEF[2]]):
        assert joined.encode(other)[0].tolist() == chat.encode(other)[0].tolist()
    # Another mistake has no such remedy.
    for messages, why in (
        ([BRIEF[0], BRIEF[2]], "System role"),
        ([BRIEF[1], *BRIEF[1:]], "roles must alternate"),
    ):
        with pytest.raises(UserError, match=why) as error:
            chat.encode(messages)
        assert "system_role" not in str(error.value)
    with pytest.raises(UserError, match="roles must alternate"):
        joined.encode([BRIEF[0], BRIEF[1], BRIEF[1], BRIEF[2]])
    tools = with_tools(BRIEF, TOOLS)
    llama = ChatTokens(tokenizer, ChatTemplate(LLAMA), joins_system=True)
    assert '"weather"' in tokenizer.decode(llama.encode(tools)[0].tolist())


def test_the_role_of_the_system_is_a_key_and_holds_in_prediction(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "t.jinja").write_text(GEMMA)
    source = write(tmp_path, [{"messages": BRIEF}])
    keys = {"source": source, "validation_source": source, "cache_dir": f"{tmp_path}/cache"}
    keys |= {"tokenizer": f"{tmp_path}/tokenizer.json", "template": f"{tmp_path}/t.jinja"}
    with pytest.raises(UserError, match=r"a.jsonl:1: .*; data.system_role=user puts the system's message"):
        ChatData(ChatDataConfig(**keys)).rows("train")
    data = ChatData(ChatDataConfig(**keys, system_role="user"))
    batch = data.rows("train").batch(np.array([0]))
    asked = data.chat.prompt(conversation(next(data.inputs("train"))))
    assert batch["tokens"][0][: len(asked)].tolist() == asked
