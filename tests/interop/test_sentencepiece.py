"""SentencePiece models encode as the library of that name does; others are refused."""

import inspect
import io
import json as module_with_text
import unicodedata

import numpy as np
import pytest

from transformer.errors import UserError
from transformer.interop.sentencepiece import read_sentencepiece

sentencepiece = pytest.importorskip("sentencepiece")

TEXTS = [
    "def f(x): return x",
    "  two  spaces \n and a line  ",
    "naïve café ½ ﬁne Å",
    "< s> / ▁ x",
    "日本語 and emoji 🙂🙂",
    "",
    " ",
    "a",
]

KINDS = {
    "unigram": {"model_type": "unigram"},
    "unigram_plain": {
        "model_type": "unigram",
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
    },
    "unigram_bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 600},
    "bpe": {"model_type": "bpe", "remove_extra_whitespaces": False},
    "bpe_bytes": {
        **{"model_type": "bpe", "byte_fallback": True, "vocab_size": 600, "remove_extra_whitespaces": False},
        "normalization_rule_name": "identity",
    },
}


def train(**options):
    """A model of the text of a module with some other letters, as the library writes it."""
    lines = inspect.getsource(module_with_text).splitlines() + ["naïve café"] * 5
    out = io.BytesIO()
    options = {"vocab_size": 300, "minloglevel": 2, "character_coverage": 0.999} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokens_as_the_library(tmp_path, rng, kind):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(train(**KINDS[kind]))
    theirs, ours = sentencepiece.SentencePieceProcessor(str(path)), read_sentencepiece(path)
    ours.encode_special_tokens = True
    assert ours.get_vocab_size() == theirs.vocab_size()
    source = inspect.getsource(inspect)
    starts = rng.integers(0, len(source) - 200, 40)
    letters = [chr(i) for i in [*range(32, 127), *range(0xC0, 0x180), 0x3042, 0x1F642]]
    drawn = ["".join(rng.choice(letters, 12)) for _ in range(40)]
    for text in [*TEXTS, *drawn, *(source[i : i + 150] for i in starts)]:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text), text
        if "unk" not in text and theirs.unk_id() not in ids:
            assert ours.decode(ids) == theirs.decode(ids)


DECOMPOSED = ["ắ ằ ấ ầ ế ề ệ ố ồ ớ ờ", "Tiếng Việt rất đẹp", "한국어 각", "naïve café", "が ぱ"]


@pytest.mark.parametrize("kind", ["unigram", "unigram_plain", "bpe"])
def test_decomposed_text_has_the_tokens_that_it_has_in_the_library(tmp_path, kind):
    path, out = tmp_path / "tokenizer.model", io.BytesIO()
    options = {"vocab_size": 60, "minloglevel": 2, "character_coverage": 1.0, **KINDS[kind]}
    options["hard_vocab_limit"] = kind == "bpe"
    lines = [*DECOMPOSED, *(unicodedata.normalize("NFD", text) for text in DECOMPOSED)] * 30
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, **options)
    path.write_bytes(out.getvalue())
    theirs, ours = sentencepiece.SentencePieceProcessor(str(path)), read_sentencepiece(path)
    for text in DECOMPOSED:
        parts = unicodedata.normalize("NFD", text)
        assert ours.encode(parts, add_special_tokens=False).ids == theirs.encode(parts), text


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_has_the_tokens_around_it(tmp_path, kind):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(train(**KINDS[kind]))
    ours = read_sentencepiece(path)
    special = {ours.token_to_id("<s>"), ours.token_to_id("</s>"), ours.token_to_id("<0x41>")}
    assert ours.encode("<s>", add_special_tokens=False).ids[0] in special
    ours.encode_special_tokens = True
    assert not special & {*ours.encode("x<s>a</s> </s><0x41>A", add_special_tokens=False).ids}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model_type": "char"}, "of type 4; only unigram and bpe"),
        ({"user_defined_symbols": ["<x>"]}, "with pieces of the user"),
        ({"treat_whitespace_as_suffix": True}, "with spaces at the end of words"),
    ],
)
def test_models_that_cannot_be_built_are_refused(tmp_path, options, said):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(train(**options))
    with pytest.raises(UserError, match=rf"{said}.*; give its tokenizer.json instead"):
        read_sentencepiece(path)


def test_a_damaged_model_is_refused(tmp_path):
    """Cut off or with other bytes: a tokenizer or one line, never anything else."""
    path, whole = tmp_path / "tokenizer.model", train()
    rng = np.random.default_rng(0)
    for i in range(200):
        damaged = bytearray(whole[: rng.integers(len(whole))] if i % 2 else whole)
        for place in rng.integers(0, max(1, len(damaged)), 3 if damaged else 0):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read_sentencepiece(path)
        except UserError as error:
            assert "\n" not in str(error) and str(path) in str(error)
