"""The tokenizers of models' folders, and their special tokens."""

import json

import numpy as np
import pytest
import tokenizers

import launch
from tests import runs
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.interop.json_files import read_object
from transformer.interop.vocabulary import read_tokenizer, write_tokenizer
from workdir.opening import load

TEXTS = ["alpha beta gamma", "épsilon (eta) zeta;", "alpha alpha\n beta"] * 20

NAMES = ("<s>", "</s>", "a")
"""Tokens, in place of their ids."""


@pytest.fixture(scope="module")
def trained():
    return Tokenizer.train("bpe", TEXTS, 300)


@pytest.fixture
def folder(trained, tmp_path):
    """With two more special tokens."""
    backend = type(trained.backend).from_str(trained.content)
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_files_may_begin_with_a_byte_order_mark(folder):
    settings = {"bos_token": "<s>", "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    plain = read_tokenizer(folder, {})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((folder / name).read_text(), encoding="utf-8-sig")
    found = read_tokenizer(folder, {})
    assert (found.identity, found.chat_template) == (plain.identity, plain.chat_template)
    (folder / "config.json").write_text('{"a": 1}', encoding="utf-8-sig")
    assert read_object(folder / "config.json") == {"a": 1}


@pytest.mark.parametrize("given", [("vocab.txt",), ("vocab.json", "merges.txt")])
def test_vocabularies_may_begin_with_a_byte_order_mark(tmp_path, given):
    texts = {"vocab.txt": "[UNK]\na\nb\n", "vocab.json": '{"a": 0, "b": 1, "ab": 2}', "merges.txt": "a b\n"}
    for name in given:
        (tmp_path / name).write_text(texts[name], encoding="utf-8-sig")
    found = read_tokenizer(tmp_path, {})
    assert found.find("a") == (1 if len(given) == 1 else 0) and found.decode(found.encode("a")) == "a"


def test_vocabulary_and_merges_of_gpt2(trained, tmp_path):
    trained.backend.model.save(str(tmp_path))
    found = read_tokenizer(tmp_path, {"eos_token_id": trained.eos_id, "vocab_size": 300})
    for text in (*TEXTS[:3], "naïve 日本 <|endoftext|>"):
        assert found.encode(text) == trained.encode(text)
        assert found.decode(found.encode(text)) == text
    assert (found.bos_id, found.eos_id) == (trained.eos_id,) * 2


def test_a_space_before_a_text_is_added_if_its_settings_say_so(trained, tmp_path):
    trained.backend.model.save(str(tmp_path))
    for spaced in (True, False):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": spaced}))
        found = read_tokenizer(tmp_path, {}).encode("alpha beta")
        assert found == trained.encode(" alpha beta" if spaced else "alpha beta")


@pytest.mark.parametrize("vocabulary", ["vocab.txt", "vocab.json"])
def test_tokens_that_another_file_adds_are_refused_by_name(tmp_path, vocabulary):
    """Those that the vocabulary has anyway are no further ones."""
    (tmp_path / "merges.txt").write_text("a b\n")
    texts = {"vocab.txt": "[UNK]\na\n", "vocab.json": '{"[UNK]": 0, "a": 1, "b": 2, "ab": 3}'}
    (tmp_path / vocabulary).write_text(texts[vocabulary])
    own = {"0": {"content": "[UNK]"}}
    for name, i in (("a", 1), ("<ent>", 4), ("a", 0)):
        for more, decoder in (({name: i}, {}), ({}, {str(i): {"content": name}})):
            (tmp_path / "added_tokens.json").write_text(json.dumps({"a": 1} | more))
            given = {"added_tokens_decoder": own | decoder}
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(given))
            if (name, i) == ("a", 1):
                assert read_tokenizer(tmp_path, {}).find("a") == 1
                continue
            with pytest.raises(UserError, match=f"'{name}', token {i}, is added to its vocabulary; give its"):
                read_tokenizer(tmp_path, {})


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        ({"bos_token_id": "<s>", "eos_token_id": "</s>"}, {}, ("<s>", "</s>", "</s>")),
        (
            {"bos_token_id": "<s>", "eos_token_id": ["</s>", "a"], "pad_token_id": "<s>"},
            {},
            ("<s>", "</s>", "<s>"),
        ),
        ({"eos_token_id": "</s>"}, {"eos_token": "<s>"}, ("<s>", "<s>", "<s>")),
        (
            {},
            {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None},
            ("<s>", "</s>", "</s>"),
        ),
        ({}, {"bos_token": "<unheard of>"}, ("<|endoftext|>",) * 3),
        ({"eos_token_id": 10**9, "bos_token_id": "x"}, {}, ("<|endoftext|>",) * 3),
    ],
)
def test_special_tokens(folder, config, settings, expected):
    """Those of tokenizer_config.json, else those of config.json; they stay with the tokenizer of a run."""
    find = Tokenizer.load(folder / "tokenizer.json").find

    def ids_of(given):
        return [*map(ids_of, given)] if isinstance(given, list) else find(given) if given in NAMES else given

    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = read_tokenizer(folder, {key: ids_of(given) for key, given in config.items()})
    assert tuple(map(found.name, (found.bos_id, found.eos_id, found.pad_id))) == expected
    (folder / "run").mkdir()
    found.save(folder / "run" / "tokenizer.json")
    again = Tokenizer.load(folder / "run" / "tokenizer.json")
    assert (again.bos_id, again.eos_id, again.pad_id) == (found.bos_id, found.eos_id, found.pad_id)
    assert again.identity == found.identity
    assert found.decode([found.bos_id, *found.encode("alpha"), found.eos_id]) == "alpha"
    assert not {found.bos_id, found.eos_id} & {*found.encode("<s>a</s><|endoftext|>")}


def test_documents_begin_with_one_token_and_end_with_another(folder, tmp_path):
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    tokenizer = read_tokenizer(folder, {})
    source = runs.write_corpus(tmp_path / "texts", 5)
    config = TextDataConfig(source=source, validation_source=source, cache_dir=str(tmp_path / "cache"))
    rows = TextData(config, tokenizer).rows("train")
    batch = rows.batch(np.arange(len(rows)))
    first = (batch["positions"] == 0) & (batch["segments"] > 0)
    assert {*batch["tokens"][first & (batch["tokens"] == tokenizer.bos_id)]} == {tokenizer.bos_id}
    counted = batch["weights"] > 0
    assert np.sum((batch["targets"] == tokenizer.eos_id) & counted) == 5
    assert np.sum((batch["targets"] == tokenizer.bos_id) & counted) == 0


@pytest.mark.parametrize("own", [None, "bytes", "start", "end"])
@pytest.mark.parametrize("paired", [True, False])
def test_a_text_that_is_answered_has_its_start_and_end(trained, tmp_path, own, paired):
    """Also by a tokenizer that adds nothing, as GPT-2's, or something else."""
    backend, end = tokenizers.Tokenizer.from_str(trained.content), trained.eos_id
    name, before = trained.name(end), [] if paired else [end]
    if own == "bytes":
        backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    elif own:
        single, special = f"{name} $A" if own == "start" else f"$A {name}", [(name, end)]
        template = tokenizers.processors.TemplateProcessing(single=single, special_tokens=special)
        backend.post_processor = template
    write_tokenizer(tmp_path, Tokenizer(backend), 64, paired=paired, answers=True)
    found = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert found.encode("a b").ids == [*before, *trained.encode("a b"), end]


def settings_of(folder):
    return json.loads((folder / "tokenizer_config.json").read_text())


def test_settings_that_other_libraries_read_stay_with_a_model(folder, tmp_path):
    """From its folder to that of a run, and to an exported one; tokens that it does not have are left out."""
    said = {
        "padding_side": "right",
        "mask_token": {"content": "<s>"},
        "unk_token": "</s>",
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said | {"other": 1}))
    found = read_tokenizer(folder, {})
    run, out = tmp_path / "run", tmp_path / "out"
    for each in (run, out):
        each.mkdir()
    found.save(run / "tokenizer.json")
    again = Tokenizer.load(run / "tokenizer.json")
    assert again.extras == {"padding_side": "right", "mask_token": "<s>", "unk_token": "</s>"}
    assert again.identity == found.identity
    write_tokenizer(out, again, 64)
    assert settings_of(out).items() >= {**again.extras, "eos_token": "</s>"}.items()
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]"}))
    assert read_tokenizer(folder, {}).extras == {}


def test_prompts_of_a_language_model_are_padded_before_their_beginning(trained, tmp_path):
    """Generation continues at their end. Libraries that ask for a token for unknown text get one."""
    for paired in (False, True):
        write_tokenizer(tmp_path, trained, 64, paired=paired)
        assert settings_of(tmp_path)["padding_side"] == ("right" if paired else "left")
        assert settings_of(tmp_path)["unk_token"] == "<|endoftext|>"
    words = Tokenizer.train("words", TEXTS, 9)
    write_tokenizer(tmp_path, words, 64)
    assert settings_of(tmp_path)["unk_token"] == words.name(words.unknown_id)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "gpt2", "mistral", "gemma2", "gemma3_text"])
def test_transformers_has_the_ids_of_an_exported_tokenizer(trained, tmp_path, kind, monkeypatch):
    """Of any class of models, also if code in the folder is trusted."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    ids = write_tokenizer(tmp_path, trained, 64, model_type=kind)
    values = {"model_type": kind, "vocab_size": trained.vocab_size}
    (tmp_path / "config.json").write_text(json.dumps(values | ids))
    for options in ({}, {"trust_remote_code": True}):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, **options)
        for text in (*TEXTS[:3], "RFC 5322 of 2022", "e\u0301 \ufb01  12\t 345\r\n", "don't  x_1"):
            assert theirs(text, add_special_tokens=False).input_ids == trained.encode(text), text
    assert (tmp_path / "as_written.py").exists() == (kind == "qwen2")


@pytest.mark.thorough
def test_the_tokenizer_of_texts_that_are_answered_gives_the_prompts_of_the_run(tmp_path, in_root):
    run, out = tmp_path / "run", tmp_path / "out"
    given = [
        "--config.model.feed_forward=swiglu",
        "--config.train.steps=1",
        "--config.optimizer.warmup_steps=0",
    ]
    assert launch.main(["--config=configs/summarization_decoder.py:tiny", f"--workdir={run}", *given]) == 0
    assert launch.main(["--mode=export", f"--workdir={run}", f"--to={out}"]) == 0
    experiment, text = load(run)[0].experiment, "def f(x):"
    found = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json")).encode(text).ids
    assert found == experiment.prompt(text) == [256, *text.encode(), 256]


def test_damaged_tokenizers_are_refused_in_a_line(folder):
    """Other bytes, or cut off: a tokenizer or one line, never anything else."""
    whole, rng = (folder / "tokenizer.json").read_bytes(), np.random.default_rng(0)
    for i in range(150):
        damaged = bytearray(whole[: rng.integers(len(whole))] if i % 3 == 0 else whole)
        for place in rng.integers(0, len(damaged), 4) if damaged else ():
            damaged[place] = rng.integers(256)
        (folder / "tokenizer.json").write_bytes(damaged)
        try:
            read_tokenizer(folder, {})
        except UserError as error:
            assert "\n" not in str(error) and str(folder) in str(error)
