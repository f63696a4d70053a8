import gzip
import itertools
import json
import math

import numpy as np
import pytest

from transformer.config import from_values, refuse_idle, to_values
from transformer.data import corpus
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

LINES = [f"{i} divided by 7 is {i / 7:.3f} — é\n" for i in range(3000)]


@pytest.fixture
def config(tmp_path):
    (tmp_path / "a.txt").write_text("".join(LINES))

    def config(**keys):
        values = {"source": f"text:{tmp_path}/a.txt", "vocab_size": 300, "sequence_length": 32}
        return TextDataConfig(**(values | {"cache_dir": str(tmp_path / "cache")} | keys))

    return config


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
@pytest.mark.parametrize("document", ["file", "line"])
def test_a_validation_pass_counts_the_bytes_that_a_compressor_sees(tokenizer, document, config):
    data = TextData(config(tokenizer=tokenizer, document=document))
    loader = data.loader("validation", 8)
    assert sum(batch["bytes"].sum() for batch in loader.iterate(0)) == len(
        "".join(data.text("validation")).encode()
    )


def test_the_splits_are_the_text(config):
    data = TextData(config())
    assert "".join(
        itertools.chain(*(data.text(split) for split in ("train", "validation", "test")))
    ) == "".join(LINES)


def test_training_batches_decode_to_training_text(config):
    data = TextData(config())
    batch = next(data.loader("train", 4, seed=1, shuffle=True, repeat=True).iterate(10))
    text = "".join(data.text("train"))
    for tokens in batch["tokens"]:
        assert data.tokenizer.decode(tokens).strip("\ufffd") in text


def test_a_validation_source_of_its_own(config, tmp_path):
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "held out"}) + "\n")
    data = TextData(config(validation_source=f"jsonl:{tmp_path}/b.jsonl"))
    assert "".join(data.text("train")) == "".join(LINES)
    assert list(data.text("validation")) == list(data.text("test")) == ["held out"]
    data = TextData(config(validation_source=f"jsonl:{tmp_path}/none.jsonl"))
    with pytest.raises(UserError, match=r"^data\.validation_source: jsonl:.*none\.jsonl: no such file"):
        data.rows("validation")


def test_a_tokenizer_is_trained_once_and_again_for_other_text(config, tmp_path, monkeypatch):
    first = TextData(config()).tokenizer
    trained = []
    monkeypatch.setattr(corpus.Tokenizer, "train", lambda *arguments: trained.append(arguments[0]))
    assert TextData(config()).tokenizer.content == first.content
    assert trained == []
    monkeypatch.undo()
    assert TextData(config(vocab_size=280)).tokenizer.vocab_size == 280
    (tmp_path / "a.txt").write_text("other text\n" * 99)
    assert TextData(config()).tokenizer.content != first.content


def test_a_tokenizer_that_leaves_out_case_or_accents_is_another_one(config):
    """Also in the cache; bits per byte are only left out where the text has what it leaves out."""
    plain, lower, uncased = (
        TextData(config(**keys))
        for keys in ({}, {"lowercase": True}, {"lowercase": True, "strip_accents": True})
    )
    assert len({each.tokenizer.identity for each in (plain, lower, uncased)}) == 3
    assert TextData(config(lowercase=True)).tokenizer.content == lower.tokenizer.content
    for made, read in ((lower, "divided by — é"), (uncased, "divided by — e")):
        assert made.tokenizer.decode(made.tokenizer.encode("DIVIDED by — É")) == read
    assert "bytes" in lower.rows("validation").batch(np.array([0]))  # its text has no capital letter
    rows = uncased.rows("validation")
    assert "bytes" not in rows.batch(np.array([0])) and "bits_per_byte is left out" in rows.why
    of_bytes = TextData(config(tokenizer="bytes", lowercase=True)).tokenizer
    assert of_bytes.encode("AÉ") == [*"aé".encode()]


@pytest.mark.parametrize("key", ["lowercase", "strip_accents"])
def test_case_and_accents_of_a_given_tokenizer_are_its_own(config, key, tmp_path):
    Tokenizer.train("bytes").save(tmp_path / "tokenizer.json")
    with pytest.raises(
        UserError, match=rf"^config.{key}: True does nothing with tokenizer '.*json'; leave it at"
    ):
        refuse_idle(config(tokenizer=str(tmp_path / "tokenizer.json"), vocab_size=4096, **{key: True}))
    refuse_idle(config(**{key: True}))
    if key == "lowercase":
        with pytest.raises(UserError, match="with tokenizer 'words', which is always in lower case"):
            refuse_idle(config(tokenizer="words", lowercase=True))


def test_a_given_tokenizer_goes_before_the_config(config, tmp_path):
    given = Tokenizer.train("bytes")
    data = TextData(config(source="text:/nowhere", tokenizer="bpe"), tokenizer=given)
    assert data.tokenizer is given  # and the source was not looked for
    given.save(tmp_path / "tokenizer.json")
    data = TextData(config(tokenizer=str(tmp_path / "tokenizer.json")))
    assert data.tokenizer.content == given.content
    assert data.rows("train").cache.tokens.max() == 256


def test_missing_files_are_named_by_their_key(config):
    with pytest.raises(UserError, match=r"^data\.source: text:/nowhere: no such file$"):
        TextData(config(source="text:/nowhere"))
    # Only where it is needed: a run has its tokenizer, whatever became of the file.
    expected = "'letters' is not a file; expected one, or one of bytes, characters, bpe, words"
    with pytest.raises(UserError, match=f"^data.tokenizer: {expected}$"):
        TextData(config(tokenizer="letters"))
    TextData(config(tokenizer="letters"), tokenizer=Tokenizer.train("bytes"))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("source", "", "source: ''; expected one of stdlib, text"),
        ("source", "/path/a.txt", "source: '/path/a.txt'; expected one of stdlib, text"),
        ("validation_source", "file:x", "validation_source: 'file:x'; expected"),
        ("vocab_size", 256, "vocab_size: 256; bpe needs at least 257"),
        ("sequence_length", 0, "sequence_length: 0; expected at least 1"),
        ("workers", -1, "workers: -1; expected"),
        ("document", "page", "document: 'page' .*; expected one of 'file', 'line', 'paragraph'"),
    ],
)
def test_impossible_values(key, value, expected, config):
    values = to_values(config()) | {key: value}
    with pytest.raises(UserError, match=rf"^config\.data\.{expected}"):
        from_values(TextDataConfig, values, "config.data")


def test_the_embedded_corpus_end_to_end(tmp_path):
    data = TextData(TextDataConfig(tokenizer="bytes", cache_dir=str(tmp_path)))
    text = "".join(data.text("validation")).encode()
    bits = 8 * len(gzip.compress(text, 9)) / len(text)
    assert 1.6 < bits < 2.2
    batch = data.loader("validation", 4).batch_at(0)
    assert np.all(batch["tokens"] <= 256)
    rows = data.rows("validation")
    assert rows.cache.num_bytes.sum() == len(text)
    assert len(rows) == math.ceil((len(rows.cache.tokens) - 1) / 256)
