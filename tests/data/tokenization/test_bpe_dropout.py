import collections
import random

import numpy as np
import pytest

from transformer.data.cache.token_cache import TokenCache
from transformer.data.pairs.pair_packing import JoinedPairs, RepackedPairs
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.data.tokenization.bpe_dropout import MAX_SEGMENTED_BYTES, Segmentations, merges, segment
from transformer.errors import UserError

RATE = 0.3


@pytest.fixture
def texts(rng) -> list[str]:
    words = ["".join(rng.choice(list("aabbcdé"), rng.integers(1, 9))) for _ in range(60)]
    return [" ".join(rng.choice(words, rng.integers(1, 8))) for _ in range(250)]


@pytest.fixture
def made(tmp_path, texts, rng) -> PairData:
    others = rng.permutation(texts).tolist()
    lines = [f"{a}\t{b}\n" for a, b in zip(texts, others, strict=True)]
    (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
    return data(tmp_path)


def data(folder, packing=None, **changes) -> PairData:
    source = f"tsv:{folder / 'a.tsv'}"
    keys = {"source": source, "validation_source": source, "source_length": 60, "target_length": 90}
    keys |= {"tokenizer": "bpe", "vocab_size": 300, "bpe_dropout": RATE, "cache_dir": str(folder)}
    return PairData(PairDataConfig(**keys | changes), None, *[packing] if packing else [])


def pairs_of(rows, made: PairData, epoch: int) -> list[tuple[str, str]]:
    """All pairs of an epoch's rows, decoded."""
    decode, found = made.tokenizer.decode, []
    places = np.arange(len(rows))
    batch = rows.batch_of_epochs(places, np.full_like(places, epoch))
    for row in places:
        for k in range(1, batch["segments"][row].max() + 1):
            here, there = batch["source_segments"][row] == k, batch["segments"][row] == k
            source, target = batch["source"][row][here], batch["targets"][row][there]
            assert source[-1] == target[-1] == made.tokenizer.eos_id
            text = decode(target[:-1])
            assert batch["bytes"][row][there].sum() == len(text.encode())
            found.append((decode(source[:-1]), text))
    return found


def test_without_dropout_it_is_the_tokenizers_own_segmentation(made, texts):
    ranks = merges(made.tokenizer)
    assert len(ranks) > 30
    for text in texts:
        words = made.tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)
        parts = [part for word, _ in words for part in segment(word, ranks, 0.0, random.Random(0))]
        assert [made.tokenizer.find(part) for part in parts] == made.tokenizer.encode(text)


def test_each_segmentation_has_its_probability():
    ranks, keep = {("b", "c"): 0, ("a", "b"): 1, ("a", "bc"): 2}, 1 - RATE
    # abc: merge bc, or only ab, or nothing; then a + bc.
    only_ab = RATE * keep
    expected = {
        ("abc",): keep * keep,
        ("a", "bc"): keep * RATE,
        ("ab", "c"): only_ab,
        ("a", "b", "c"): RATE**2,
    }
    rng, n = random.Random(1), 20_000
    found = collections.Counter(tuple(segment("abc", ranks, RATE, rng)) for _ in range(n))
    for parts, probability in expected.items():
        assert found[parts] / n == pytest.approx(probability, abs=5 * (probability / n) ** 0.5)


def test_every_epoch_has_every_pair_once_in_other_tokens_and_rows(made):
    rows = made.loader("train", 4, shuffle=True, repeat=True).rows
    expected, packed = sorted(made.texts("train")), [rows.epoch(epoch) for epoch in (0, 1, 7)]
    assert all(sorted(pairs_of(rows, made, epoch)) == expected for epoch in (0, 1, 7))
    together = [{frozenset(row.tolist()) for row in each._rows} for each in packed]
    assert together[0] != together[1] != together[2]
    assert len({each.padding for each in packed}) == 3  # by the number of tokens


def test_a_batch_depends_on_seed_and_step_alone(made, tmp_path):
    first = made.loader("train", 4, seed=3, shuffle=True, repeat=True)
    again = data(tmp_path).loader("train", 2, seed=3, shuffle=True, repeat=True)
    step = len(first) - 1  # has rows of two epochs, if the rows are not a multiple of 4
    halves = [again.batch_at(2 * step + i) for i in range(2)]
    for name, whole in first.batch_at(step).items():
        np.testing.assert_array_equal(whole, np.concatenate([half[name] for half in halves]))


def test_segmentations_vary_and_the_usual_ones_are_those_of_the_cache(made):
    side = made.sources("train")[0]
    words = Segmentations.of(side, made.tokenizer, RATE, made.folder)
    cache, usual = TokenCache.of(side, made.tokenizer, made.folder), words.usual()
    drawn = [words.drawn((epoch, 0), 1000) for epoch in range(3)]
    for name in ("offsets", "tokens", "num_bytes"):
        np.testing.assert_array_equal(getattr(usual, name), getattr(cache, name))
    for i in range(len(side)):
        np.testing.assert_array_equal(usual.document(i), cache.document(i))
        for one in drawn:
            assert made.tokenizer.decode(one.document(i)[1:-1]) == side.text(i)
            assert one.offsets[i + 1] - one.offsets[i] == len(one.document(i))
            assert one.num_bytes[one.offsets[i] : one.offsets[i + 1]].sum() == len(side.text(i).encode())
    lengths = [np.diff(each.offsets).sum() for each in (cache, *drawn)]
    assert len(set(lengths[1:])) > 1 and min(lengths[1:]) > 1.02 * lengths[0]


def test_no_pair_is_truncated_because_of_its_draw(made):
    side = made.sources("train")[0]
    words = Segmentations.of(side, made.tokenizer, RATE, made.folder)
    usual = np.diff(words.usual().offsets)
    most = int(np.median(usual))
    drawn = words.drawn((0, 0), most)
    assert (np.diff(drawn.offsets)[usual <= most] <= most).all()
    for i in np.flatnonzero(usual > most):  # rarely a drawn segmentation is the shorter one
        fits = len(drawn.document(i)) <= most
        assert fits or drawn.document(i).tolist() == words.usual().document(i).tolist()


def test_a_very_long_word_keeps_its_segmentation(tmp_path):
    (tmp_path / "a.tsv").write_text(f"{'ab' * MAX_SEGMENTED_BYTES}\tx\nab ab ab\tab\n" * 20)
    made = data(tmp_path, target_length=200, source_length=200, vocab_size=270)
    words = Segmentations.of(made.sources("train")[0], made.tokenizer, RATE, made.folder)
    drawn = words.drawn((0, 0), 1000)
    np.testing.assert_array_equal(drawn.document(0), words.usual().document(0))


def test_an_epoch_that_fits_no_order_has_the_first_rows(made):
    first = made.rows("train")
    rows = RepackedPairs(first, lambda epoch, seed: range(len(first) + 1))
    assert rows.epoch(3) is first
    batch = rows.batch_of_epochs(np.array([1, -1]), np.array([3, 3]))
    np.testing.assert_array_equal(batch["tokens"][0], first.batch(np.array([1]))["tokens"][0])
    assert not batch["weights"][1].any()


def test_without_dropout_pairs_are_packed_anew_too(tmp_path, made):
    plain = data(tmp_path, bpe_dropout=0.0)
    rows, expected = plain.loader("train", 4, repeat=True).rows, sorted(plain.texts("train"))
    assert len(rows) == len(plain.rows("train"))
    assert all(sorted(pairs_of(rows, plain, epoch)) == expected for epoch in range(3))
    first, second = ([sorted(row) for row in rows.epoch(epoch)._rows] for epoch in (0, 1))
    assert sorted(first) != sorted(second)
    np.testing.assert_array_equal(
        rows.batch(np.arange(4))["tokens"], plain.rows("train").batch(np.arange(4))["tokens"]
    )


def test_a_decoder_reads_drawn_pairs_too(tmp_path, made):
    joined = data(tmp_path, JoinedPairs)
    rows = joined.loader("train", 4, repeat=True).rows
    batch = rows.batch_of_epochs(np.arange(len(rows)), np.full(len(rows), 2))
    total = sum(len(target.encode()) for _, target in joined.texts("train"))
    assert batch["bytes"].sum() == total


def test_evaluation_reads_the_usual_segmentations(made):
    one, two = (made.loader(split, 2).batch_at(0) for split in ("train", "validation"))
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name])
    tokens = one["source"][0][one["source_segments"][0] == 1][:-1]
    assert tokens.tolist() == made.tokenizer.encode(made.tokenizer.decode(tokens))


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "words", "bpe"])
def test_other_tokenizers_are_refused(tmp_path, made, tokenizer):
    keys = {"tokenizer": tokenizer, "vocab_size": 300 if tokenizer in ("words", "bpe") else 4096}
    keys |= {"lowercase": True} if tokenizer == "bpe" else {}
    with pytest.raises(UserError, match=r"data.bpe_dropout: 0.3 needs a byte-level BPE that keeps case"):
        data(tmp_path, **keys).loader("train", 2, repeat=True)
