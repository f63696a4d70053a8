import functools
import json

import numpy as np
import pytest

from transformer.data.pairs.pair_packing import JoinedPairs, PackedPairs
from transformer.data.pairs.text_pairs import PairData, PairDataConfig
from transformer.errors import UserError


def write(path, rng, count: int, longest: int) -> tuple[list[str], list[str]]:
    letters = np.array(list("abcdefgh é"))

    def text() -> str:
        return "x" + "".join(rng.choice(letters, rng.integers(0, longest)))

    pairs = [(text(), text()) for _ in range(count)]
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return pairs


def data(path, **changes) -> PairData:
    source = f"tsv:{path}"
    keys = {"source": source, "validation_source": source, "tokenizer": "bytes", "source_length": 24}
    return PairData(PairDataConfig(**keys | {"target_length": 40, "cache_dir": str(path.parent)} | changes))


def unpacked(rows: PackedPairs, eos: int) -> list[tuple[bytes, bytes]]:
    """Every pair that the rows hold, read back through segments alone."""
    found = []
    for row in range(len(rows)):
        batch = {name: values[0] for name, values in rows.batch(np.array([row])).items()}
        for k in range(1, batch["segments"].max() + 1):
            here, there = batch["source_segments"] == k, batch["segments"] == k
            source, read, written = batch["source"][here], batch["tokens"][there], batch["targets"][there]
            assert source[-1] == read[0] == eos
            assert (read[1:] == written[:-1]).all() and (batch["weights"][there] == 1).all()
            # A target that is not there to its end has none, and only the bytes of what is there count.
            written = written[:-1] if written[-1] == eos else written
            assert batch["bytes"][there].sum() == len(written)
            assert (batch["source_positions"][here] == np.arange(here.sum())).all()
            assert (batch["positions"][there] == np.arange(there.sum())).all()
            found.append((bytes(source[:-1].tolist()), bytes(written.tolist())))
        padding = batch["segments"] == 0
        assert not any(batch[name][padding].any() for name in ("tokens", "targets", "weights", "bytes"))
    return found


def test_every_pair_is_in_one_row_whole(tmp_path, rng):
    pairs = write(tmp_path / "a.tsv", rng, 300, 10)
    made = data(tmp_path / "a.tsv")
    rows = made.rows("train")
    expected = sorted((a.strip("\r\n").encode(), b.encode()) for a, b in pairs)
    assert sorted(unpacked(rows, made.tokenizer.eos_id)) == expected
    assert rows.pairs == 300 and rows.tally == {"packed": 300}
    batch = rows.batch(np.arange(len(rows)))
    assert batch["bytes"].sum() == sum(len(b.encode()) for _, b in pairs)
    filled = (batch["segments"] > 0).sum() + (batch["source_segments"] > 0).sum()
    assert rows.padding == pytest.approx(1 - filled / (len(rows) * 64))
    assert len(rows) < 1.35 * max(
        (batch["segments"] > 0).sum() / 40, (batch["source_segments"] > 0).sum() / 24
    )


def test_what_is_too_long_is_cut_left_out_or_refused(tmp_path, rng):
    pairs = write(tmp_path / "a.tsv", rng, 100, 60)
    sizes = [(len(a.encode()) + 1, len(b.encode()) + 1) for a, b in pairs]
    fits = [s <= 24 and t <= 40 for s, t in sizes]
    cut = data(tmp_path / "a.tsv", too_long="cut")
    rows = cut.rows("train")
    assert rows.tally == {"packed": 100, "truncated": fits.count(False)}
    expected = sorted((a.encode()[:23], b.encode()[:40]) for a, b in pairs)
    assert sorted(unpacked(rows, cut.tokenizer.eos_id)) == expected
    ends = (rows.batch(np.arange(len(rows)))["targets"] == cut.tokenizer.eos_id).sum()
    assert ends == sum(t <= 40 for _, t in sizes) < 100
    rows = data(tmp_path / "a.tsv", too_long="skip").rows("train")
    assert rows.tally == {"packed": fits.count(True), "too long": fits.count(False)}
    first = fits.index(False)
    message = rf"data.too_long: pair {first + 1} has {sizes[first][0]} source and {sizes[first][1]} target"
    with pytest.raises(UserError, match=message):
        data(tmp_path / "a.tsv", too_long="refuse").rows("train")


def test_empty_sides_are_counted_and_shift_nothing(tmp_path):
    (tmp_path / "a").write_text("one\n \nthree\nfour\n\n")
    (tmp_path / "b").write_text("eins\nzwei\n\t \nvier\nfünf\n")
    made = data(tmp_path / "x", source=f"aligned:{tmp_path}/a,{tmp_path}/b", validation_source="")
    made = data(tmp_path / "x", **dict.fromkeys(["source", "validation_source"], made.config.source))
    rows = made.rows("train")
    assert sorted(unpacked(rows, made.tokenizer.eos_id)) == [(b"four", b"vier"), (b"one", b"eins")]
    assert rows.tally == {"packed": 2, "one side is empty": 3}
    assert list(made.texts("train")) == [("one", "eins"), ("four", "vier")]
    (tmp_path / "b").write_text("\n\n \n\n\n")
    with pytest.raises(UserError, match="no pair is left of 5"):
        data(tmp_path / "x", **dict.fromkeys(["source", "validation_source"], made.config.source)).rows(
            "train"
        )


def test_one_tokenizer_learns_both_sides(tmp_path):
    (tmp_path / "a.tsv").write_text("aaaa aaaa\tzzzz zzzz\n" * 20)
    made = data(tmp_path / "a.tsv", tokenizer="bpe", vocab_size=264)
    assert len(made.tokenizer.encode("aaaa")) <= 2 and len(made.tokenizer.encode("zzzz")) <= 2


def test_several_fields_are_one_source(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": "who?", "context": "Ada did.", "answer": "Ada"}\n' * 3)
    source = dict.fromkeys(["source", "validation_source"], f"jsonl:{tmp_path}/a.jsonl")
    made = data(tmp_path / "x", **source, source_field="question,context", target_field="answer")
    assert list(made.texts("train")) == [("who?\nAda did.", "Ada")] * 3
    assert unpacked(made.rows("train"), made.tokenizer.eos_id)[0] == (b"who?\nAda did.", b"Ada")


@pytest.mark.parametrize("key", ["source_length", "target_length"])
def test_impossible_lengths(key):
    with pytest.raises(UserError, match=f"^{key}: 1; expected at least 2"):
        PairDataConfig(**{key: 1})


def test_a_header_that_names_one_side_alone_is_refused(tmp_path):
    """It was skipped on one side and read on the other, so that every pair was of two neighbouring lines."""
    (tmp_path / "a.tsv").write_text("source\tdeutsch\n" + "".join(f"s{i}\tt{i}\n" for i in range(40)))
    with pytest.raises(UserError, match=r"data.source: \S+a.tsv:1 looks like a header, .*'target'"):
        data(tmp_path / "a.tsv", validation_source="").rows("train")


def test_sides_of_unequal_numbers_are_refused(tmp_path, monkeypatch, rng):
    write(tmp_path / "a.tsv", rng, 30, 10)
    made = data(tmp_path / "a.tsv")
    lengths = {"source": 30, "target": 29}
    monkeypatch.setattr(
        "transformer.data.sources.line_files.Columns.__len__", lambda self: lengths[self.field]
    )
    for use in (made.rows, lambda split: next(made.texts(split))):
        with pytest.raises(UserError, match=r"tsv:\S+ \(train\) has 30 sources and 29 targets"):
            use("train")


@pytest.mark.parametrize("loss_on", ["target", "all"])
def test_joined_pairs_that_are_cut_teach_no_end(tmp_path, rng, loss_on):
    pairs = write(tmp_path / "a.tsv", rng, 60, 60)
    made = data(tmp_path / "a.tsv")
    made = PairData(made.config, None, functools.partial(JoinedPairs, loss_on=loss_on))
    rows, eos = made.rows("train"), made.tokenizer.eos_id
    assert 0 < rows.tally["truncated"] < 60
    found = []
    for row in range(len(rows)):
        batch = {name: values[0] for name, values in rows.batch(np.array([row])).items()}
        for k in range(1, batch["segments"].max() + 1):
            read, wanted, weights, sizes = (
                batch[name][batch["segments"] == k] for name in ("tokens", "targets", "weights", "bytes")
            )
            assert read[0] == eos and (read[1:] == wanted[:-1]).all() and not sizes[weights == 0].any()
            s = int(np.flatnonzero(wanted == eos)[0]) + 1  # of the source with its end
            source, target = wanted[: s - 1], wanted[s:]
            assert (weights[s:] == 1).all() and (weights[: s - 1] == (loss_on == "all")).all()
            ended = target[-1] == eos
            assert sizes[s:].sum() == len(target) - ended
            whole = [a for a, _ in pairs if a.encode() == bytes(source.tolist())]
            assert weights[s - 1] == (loss_on == "all" and bool(whole))
            found.append((bytes(source.tolist()), bytes(target[: len(target) - ended].tolist()), ended))
    encoded = [(a.encode(), b.encode()) for a, b in pairs]
    assert sorted(found) == sorted((a[:23], b[:40], len(b) < 40) for a, b in encoded)


REFERENCES = {
    "jsonl": (
        [
            {"source": "one", "target": ["", "eins", "ein"], "other": "1"},
            {"source": "two", "target": "zwei", "other": [" ", "zwo", "2"]},
            {"source": "three", "target": [], "other": "drei"},
            {"source": "four", "target": [" "], "other": "vier"},
        ],
        [("one", ["eins", "ein", "1"]), ("two", ["zwei", "zwo", "2"])],
    ),
    "tsv": (
        [("source", "other", "target"), ("one", "ein", "eins"), ("two", " ", "zwei")],
        [("one", ["eins", "ein"]), ("two", ["zwei"])],
    ),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_several_references_of_which_the_first_is_trained_on(tmp_path, kind):
    records, expected = REFERENCES[kind]
    lines = [json.dumps(each) if kind == "jsonl" else "\t".join(each) for each in records]
    (tmp_path / "a").write_text("\n".join(lines))
    (tmp_path / "plain.tsv").write_text("source\ttarget\nfour\tvier\n" * 2)
    source = f"{kind}:{tmp_path}/a"
    keys = {"source": f"tsv:{tmp_path}/plain.tsv", "validation_source": source, "reference_fields": "other"}
    made = data(tmp_path / "x", **keys)
    assert list(made.examples("validation")) == expected
    assert list(made.texts("validation")) == [(text, given[0]) for text, given in expected]
    found = unpacked(made.rows("validation"), made.tokenizer.eos_id)
    assert sorted(found) == sorted((a.encode(), given[0].encode()) for a, given in expected)
    assert [pair[1] for pair in made.texts("train")][:1] == ["vier"]  # it need not have any others
    with pytest.raises(UserError, match=r"data.source: .*plain.tsv:1 .* no column 'other'"):
        list(data(tmp_path / "x", **keys | {"validation_source": ""}).texts("train"))


def test_what_training_leaves_out_is_not_measured(tmp_path, rng):
    write(tmp_path / "a.tsv", rng, 100, 60)
    made = data(tmp_path / "a.tsv", too_long="skip")
    assert 0 < made.rows("train").pairs == len(list(made.texts("train"))) < 100
