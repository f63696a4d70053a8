import functools
import json
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from tests.data.documents import TEXT, TOKENIZERS, tokenizer
from transformer.data.cache import token_cache
from transformer.data.tokenization import token_bytes, tokenizer_kinds
from transformer.data.tokenization.token_names import END
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

made = functools.cache(tokenizer)


def counted(kind, some):
    """What the encoder of a kind gives of each text."""
    encode, _ = token_cache.encoder(made(kind))
    return list(encode(some))


texts = st.text() | st.text(alphabet=list("a é日🙂\n\r\t\x00\ufffd'<|>endoftext")) | st.just(END)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_any_text_returns(kind, text):
    assert made(kind).decode(made(kind).encode(text)) == text


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=sorted(set(TEXT))))
def test_known_characters_return(text):
    ids = made("characters").encode(text)
    assert len(ids) == len(text)
    assert made("characters").decode(ids) == text


def test_an_unknown_character_is_one_unknown_token():
    ids = made("characters").encode("aЖЖd")
    assert len(ids) == 4
    assert made("characters").decode(ids) == "a\ufffd\ufffdd"


def test_a_byte_is_its_own_id():
    every = "".join(map(chr, [*range(0x250), 0x65E5, 0x1F642]))
    assert made("bytes").encode(every) == list(every.encode())
    assert made("bytes").vocab_size == 257
    assert made("bytes").eos_id == 256


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(some=st.lists(texts, min_size=1, max_size=4))
def test_bytes_are_counted_in_full(kind, some):
    for text, (ids, counts, _) in zip(some, counted(kind, some), strict=True):
        assert list(ids) == made(kind).encode(text)
        assert counts.shape == ids.shape
        assert (counts >= 0).all()
        total = len(text.encode())
        assert counts.sum() <= total
        if kind in ("bytes", "characters", "bpe"):
            assert counts.sum() == total


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_each_token_counts_the_bytes_that_it_decodes_to(kind, text):
    ((ids, counts, lost),) = counted(kind, [text])
    assert not lost
    prefixes = [made(kind).decode(ids[: end + 1]) for end in range(len(ids))]
    for prefix, count in zip(prefixes, np.cumsum(counts), strict=True):
        if "\ufffd" not in prefix:
            assert len(prefix.encode()) == count


def test_counting_by_offsets_agrees_with_counting_by_size():
    ((ids, counts, _),) = counted("bpe", [TEXT])
    ((other_ids, other_counts, lost),) = token_bytes.encode_by_offsets(made("bpe").backend, [TEXT])
    assert not lost
    np.testing.assert_array_equal(ids, other_ids)
    assert counts.sum() == other_counts.sum() == len(TEXT.encode())
    # They may differ only inside a character that several tokens share.
    assert np.abs(np.cumsum(counts) - np.cumsum(other_counts)).max() <= 3


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_text_contains_a_special_token(kind, tmp_path):
    made(kind).save(tmp_path / "tokenizer.json")
    for each in (made(kind), Tokenizer.load(tmp_path / "tokenizer.json")):
        for name in (END, "</s>", "[SEP]", "[UNK]"):
            text = f"a{name}b {name}"
            assert each.eos_id not in each.encode(text)
            assert all(each.eos_id not in ids for ids, *_ in token_cache.encoder(each)[0]([text]))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_saved_and_loaded_it_is_the_same(kind, tmp_path):
    before = made(kind)
    before.save(tmp_path / "tokenizer.json")
    after = Tokenizer.load(tmp_path / "tokenizer.json")
    assert after.identity == before.identity
    assert after.encode(TEXT) == before.encode(TEXT)
    assert (after.eos_id, after.vocab_size) == (before.eos_id, before.vocab_size)
    assert max(after.encode(TEXT)) < after.vocab_size
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_special_token_is_not_shown(kind):
    each = made(kind)
    ids = each.encode("class A")
    assert each.decode([each.eos_id, *ids, each.eos_id]) == each.decode(ids)


@pytest.mark.parametrize("kind", ["bytes", "bpe", "characters", "metaspace"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stream_joins_to_the_whole(kind, data):
    ids = data.draw(st.lists(st.integers(0, made(kind).vocab_size - 1), max_size=30))
    assert "".join(made(kind).stream(ids)) == made(kind).decode(ids)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_follows_a_text_is_what_it_adds_to_it(kind, data):
    """Whole, and in a stream, wherever a known text is cut between two tokens."""
    ids = made(kind).encode(TEXT)
    n = data.draw(st.integers(0, len(ids)))
    before, after = ids[:n], ids[n : n + data.draw(st.integers(0, 9))]
    text, known = made(kind).decode(before + after), made(kind).decode(before)
    added = made(kind).decode_after(before, after)
    if not known.endswith("\ufffd"):  # half a character, which what follows completes
        assert known + added == text
    assert "".join(made(kind).stream(after, before)) == added


@pytest.mark.parametrize(
    "kind,text", [("metaspace", "class pass"), ("wordpiece", "return 3"), ("words", "class pass")]
)
def test_the_space_before_a_continuation_is_kept(kind, text):
    first, second = text.split()
    before, after = (
        made(kind).encode(first),
        made(kind).encode(f"{first} {second}")[len(made(kind).encode(first)) :],
    )
    assert made(kind).decode(after) == second  # alone it starts a text
    assert made(kind).decode_after(before, after) == f" {second}"


def test_a_stream_never_shows_half_a_character():
    pieces = list(made("bytes").stream("aé日🙂b".encode()))
    assert pieces == ["a", "é", "日", "🙂", "b"]
    assert list(made("bytes").stream("é".encode()[:1])) == ["\ufffd"]


def test_training_is_the_same_every_time():
    assert tokenizer("bpe").content == tokenizer("bpe").content
    assert tokenizer("bpe").vocab_size <= 300


def test_bpe_is_trained_on_pieces_of_long_words():
    """Each merge doubles a token, as long as a piece allows."""
    trained = Tokenizer.train("bpe", ["ab" * 50_000], 290)
    longest = max(map(len, json.loads(trained.content)["model"]["vocab"]))
    assert longest == tokenizer_kinds.MAX_WORD_BYTES
    assert len(trained.encode("ab" * 1024)) == 2  # and a word is encoded whole
    assert json.loads(trained.content)["pre_tokenizer"]["type"] == "ByteLevel"


def test_its_size_is_kept():
    assert Tokenizer.train("bpe", [TEXT], 290).vocab_size == 290


def test_a_tokenizer_without_an_end_gets_one(tmp_path):
    plain = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    plain.enable_truncation(1)
    plain.enable_padding(length=7)
    plain.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.eos_id == 2
    assert loaded.vocab_size == 3
    loaded.backend.pre_tokenizer = pre_tokenizers.Whitespace()
    assert loaded.encode("a a a") == [0, 0, 0]


@pytest.mark.parametrize("content", ["", "{}", json.dumps({"model": 3}), "\x00"])
def test_what_is_no_tokenizer(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer\.json \(.+\)$"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"other\.json: cannot be read \(No such file"):
        Tokenizer.load(tmp_path / "other.json")


def test_a_tokenizer_trained_with_dropout_encodes_a_text_always_alike(tmp_path):
    backend = tokenizers.Tokenizer(models.BPE(dropout=0.5))
    trainer = trainers.BpeTrainer(vocab_size=60, show_progress=False)
    backend.train_from_iterator(["abababab abab"] * 9, trainer)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len({tuple(backend.encode("abababab").ids) for _ in range(30)}) > 1
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len({tuple(loaded.encode("abababab")) for _ in range(30)}) == 1
    assert json.loads(loaded.content)["model"]["dropout"] is None


CLOSED = {
    "unigram": lambda: models.Unigram([("a", -1.0), ("b", -2.0)], None, False),
    "unigram_bytes": lambda: models.Unigram([("a", -1.0), ("b", -2.0)], None, True),
    "words": lambda: models.WordLevel({"a": 0, "b": 1}, "[UNK]"),
    "wordpiece": lambda: models.WordPiece({"a": 0, "b": 1, "##b": 2}, unk_token="[UNK]"),
    "bpe": lambda: models.BPE({"a": 0, "b": 1}, [], unk_token="[UNK]"),
}


@pytest.mark.parametrize("kind", CLOSED)
def test_a_word_that_is_not_in_a_closed_vocabulary_is_named(kind, tmp_path):
    backend = tokenizers.Tokenizer(CLOSED[kind]())
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "closed.json"))
    loaded = Tokenizer.load(tmp_path / "closed.json")
    assert loaded.encode("a b a") == [0, 1, 0] == loaded.encode_with_spans("a b a")[0]
    assert loaded.find("b") == 1 and loaded.eos_id == loaded.vocab_size - 1
    loaded.save(tmp_path / "tokenizer.json")
    encode, _ = token_cache.encoder(Tokenizer.load(tmp_path / "tokenizer.json"))
    for read in (loaded.encode, loaded.encode_with_spans, lambda text: list(encode(["a b", text]))):
        with pytest.raises(UserError, match=r"\.json: 'zzz' in 'a zzz b' has no token, .*: add one"):
            read("a zzz b")


class Silent(Exception):
    """An exception without a message."""


def test_a_reader_that_raises_without_a_message_is_named(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")

    def fail(text):
        raise Silent

    module = SimpleNamespace(Tokenizer=SimpleNamespace(from_str=fail))
    monkeypatch.setattr("transformer.data.tokenization.tokenizers.tokenizers", module)
    with pytest.raises(UserError, match=r"not a tokenizer\.json \(Silent\)$"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_an_unknown_kind():
    with pytest.raises(
        UserError, match="'letters': unknown tokenizer; expected a file or one of bytes, char"
    ):
        Tokenizer.train("letters", [])


ACCENTED = "Äéİ Σñ한日ABCabc\u0301\u0308,\n"


def normalized(text, lowercase, strip_accents):
    """The text as a tokenizer that changes it reads it, by Python's tables of characters."""
    if strip_accents:
        marks = unicodedata.normalize("NFD", text)
        text = "".join(c for c in marks if unicodedata.category(c)[0] != "M")
        text = unicodedata.normalize("NFC", text)
    return "".join(c.lower() for c in text) if lowercase else text


@functools.cache
def changing(kind, lowercase, strip_accents):
    some = [ACCENTED, "ÄRGER in CAFÉS, naïve cafés, Cafe\u0301s\n" * 9]
    return Tokenizer.train(kind, some, 300, lowercase=lowercase, strip_accents=strip_accents)


@pytest.mark.parametrize("lowercase,strip_accents", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe", "words"])
@settings(max_examples=40, deadline=None)
@given(text=st.text(alphabet=list(ACCENTED)))
def test_case_and_accents_are_left_out_where_that_is_asked(kind, lowercase, strip_accents, text):
    made, text = changing(kind, lowercase, strip_accents), f"{text} CAFÉS"
    read = normalized(text, lowercase or kind == "words", strip_accents)
    assert made.encode(text) == made.encode(read)
    if kind != "words":
        assert made.decode(made.encode(text)) == read


def test_a_tokenizer_learns_the_text_as_it_reads_it(tmp_path):
    words = {}
    for lowercase, strip_accents in ((False, False), (True, False), (False, True), (True, True)):
        made = changing("bpe", lowercase, strip_accents)
        words[lowercase, strip_accents] = [word for word in made.words() if len(word) > 3]
        made.save(tmp_path / "tokenizer.json")
        assert Tokenizer.load(tmp_path / "tokenizer.json").encode("CAFÉS") == made.encode("CAFÉS")
    assert {"cafés", "CAFÉS"} <= {*words[False, False]}
    assert "cafés" in words[True, False] and "CAFES" in words[False, True] and "cafes" in words[True, True]
    for (lowercase, strip_accents), found in words.items():
        if lowercase or strip_accents:
            assert found == [normalized(word, lowercase, strip_accents) for word in found]


def test_words_are_the_commonest_ones_in_lower_case():
    each = Tokenizer.train("words", ["Ring, ring! The ring;\n", "the RING? A cat"], 7)
    assert each.vocab_size == 7
    assert [*each.words()] == ["ring", "the", "!", ",", ";"]  # as often: in the order of the alphabet
    assert each.encode("THE") == [each.words()["the"]]
    assert each.decode(each.encode("The dog,\nthe ring")) == "the \ufffd , the ring"
    assert each.encode("dog \ufffd") == [each.unknown_id] * 2


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_word_is_the_token_that_it_is_inside_a_text(kind):
    words = made(kind).words()
    assert len(words) > 10 and len({*words.values()}) == len(words)
    for word, token in words.items():
        assert word == made(kind).normalize(word)
        after, alone = made(kind).encode(f" {word}"), made(kind).encode(word)
        assert token == after[0] if len(after) == 1 else [token] == alone
        assert token not in (made(kind).eos_id, made(kind).unknown_id)
    for token in made(kind).encode(TEXT):  # none is missing
        shown = made(kind).decode([token]).strip()
        if made(kind).encode(shown) == [token] != [made(kind).unknown_id]:
            assert shown in words


def test_a_word_after_a_space_goes_before_one_at_the_beginning():
    each = Tokenizer.train("bpe", ["cat cat cat\n" * 9], 270)
    assert len(each.encode("cat")) == len(each.encode(" cat")) == 1 and each.encode("cat") != each.encode(
        " cat"
    )
    assert each.words()["cat"] == each.encode(" cat")[0]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_spans_say_where_tokens_stand(kind):
    ids, spans = made(kind).encode_with_spans(TEXT)
    assert ids == made(kind).encode(TEXT)
    assert all(0 <= start <= end <= len(TEXT) for start, end in spans)
    covered = {place for span in spans for place in range(*span)}
    assert all(TEXT[place].isspace() for place in {*range(len(TEXT))} - covered)
