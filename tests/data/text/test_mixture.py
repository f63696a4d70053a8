import itertools
import math

import numpy as np
import pytest

from transformer.config import from_values
from transformer.data.encoders.masked_text import MaskedData, MaskedDataConfig
from transformer.data.text.interleaving import MAX_PERIOD, Interleaving, whole_weights
from transformer.data.text.mixture import Mixture, short_names
from transformer.data.text.packed_text import TextData, TextDataConfig
from transformer.data.text.skip_grams import SkipGramDataConfig
from transformer.errors import UserError

SIZES = {"a": 900, "b": 2000, "c": 300}
"""Lines of each source: every line has its letter and its number, so that a row tells where it is from."""


@pytest.fixture
def config(tmp_path):
    for name, count in SIZES.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{i:06d}\n" for i in range(count)))

    def config(weights, kind=TextDataConfig, **keys):
        sources = {
            name if name == "stdlib" else f"text:{tmp_path}/{name}.txt": weight
            for name, weight in weights.items()
        }
        values = {"tokenizer": "bytes", "sequence_length": 16, "cache_dir": str(tmp_path / "cache")}
        return kind(sources=sources, **values | keys)

    return config


def endless(data, batch_size=8, seed=3, **options):
    return data.loader("train", batch_size, seed=seed, shuffle=True, repeat=True, **options)


def letters(batch):
    """The source of each row."""
    return ["".join({*map(chr, row)} & {*SIZES}) for row in batch["tokens"]]


def drawn_weights(rng, kind):
    count = int(rng.integers(2, 9))
    if kind == "whole":
        return rng.integers(1, 60, count).tolist()
    if kind == "shares":
        return (rng.integers(1, 1000, count) / 1000).tolist()
    return (rng.integers(1, 300) * 1.5 ** -np.arange(count)).tolist()


@pytest.mark.parametrize("kind", ["whole", "shares", "geometric"])
def test_any_number_of_places_has_the_proportions(kind, rng):
    """Exactly: source i has floor(n w_i) or ceil(n w_i) of the first n places, for every n."""
    for _ in range(10):
        weights = drawn_weights(rng, kind)
        order = Interleaving(weights)
        parts = whole_weights(weights).tolist()
        whole = sum(parts)
        assert [part / whole for part in parts] == pytest.approx([w / sum(weights) for w in weights])
        n = min(3 * whole, 20_000)
        sources, before = order(np.arange(n))
        had = np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0)
        for i, part in enumerate(parts):
            places = np.arange(1, n + 1) * part  # in units of 1 / whole
            assert np.all(had[:, i] >= places // whole) and np.all(had[:, i] <= -(-places // whole))
            # A source is read in its own order, without gaps.
            np.testing.assert_array_equal(before[sources == i], np.arange(had[-1, i]))


def test_far_places_are_known_without_those_before(rng):
    order = Interleaving([5, 3, 1.5])
    near = order(np.arange(100))
    far = order(np.arange(100) + 19 * 10**12)
    np.testing.assert_array_equal(near[0], far[0])
    np.testing.assert_array_equal(far[1] - near[1], np.array([10, 6, 3])[near[0]] * 10**12)


def test_weights_are_smallest_whole_numbers():
    assert whole_weights([0.7, 0.3]).tolist() == [7, 3]
    assert whole_weights([0.1 + 0.2, 0.7]).tolist() == [3, 7]
    assert whole_weights([1 / 3, 2 / 3]).tolist() == [1, 2]
    assert whole_weights([1e300, 1e300]).tolist() == [1, 1]
    assert whole_weights([0.12345, 0.87655]).tolist() == [2469, 17531]
    assert whole_weights([1, MAX_PERIOD - 1]).tolist() == [1, MAX_PERIOD - 1]
    with pytest.raises(UserError, match=r"^the weights 1, 100000 are not .* round them, such as 1, 99999$"):
        whole_weights([1, MAX_PERIOD])
    with pytest.raises(UserError, match=r"^the weights 1, 1000000 are not .* round them, or leave some out$"):
        whole_weights([1, 10 * MAX_PERIOD])
    with pytest.raises(UserError, match=r"0\.3333333, 0\.6666667 are not .* such as 1, 2$"):
        whole_weights([0.3333333, 0.6666667])
    with pytest.raises(UserError, match="not multiples"):
        whole_weights([123456789, 987654320])  # nearly 1 to 8


def test_rows_of_training_are_in_the_proportions(config):
    loader = endless(TextData.of(config({"a": 0.5, "b": 0.3, "c": 0.2})))
    seen = []
    for step in range(100):
        seen += letters(loader.batch_at(step))
        for name, weight in {"a": 5, "b": 3, "c": 2}.items():
            assert len(seen) * weight // 10 <= seen.count(name) <= -(-len(seen) * weight // 10)


def test_every_source_has_epochs_of_its_own(config):
    """Each row of a source once in every epoch of it, in another order."""
    data = TextData.of(config({"a": 2, "c": 1}))
    parts = data.parts("train")
    loader, rows = endless(data), {name: part.rows("train") for name, part in parts.items()}
    found = {name: [] for name in parts}
    for step in range(200):
        batch = loader.batch_at(step)
        for name, tokens in zip(letters(batch), batch["tokens"], strict=True):
            found[name].append(tokens.tobytes())
    for name, each in rows.items():
        count, whole = len(each), sorted(each[i]["tokens"].tobytes() for i in range(len(each)))
        epochs = [found[name][start : start + count] for start in range(0, len(found[name]), count)]
        assert len(epochs) > 2 + (name == "c")
        for epoch in epochs[:-1]:
            assert sorted(epoch) == whole
        assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", [TextData, MaskedData])
def test_batches_are_the_same_on_any_number_of_hosts(kind, config):
    keys = {"kind": MaskedDataConfig, "next_sentence": True, "document": "line", "sequence_length": 24}
    data = kind.of(config({"a": 0.55, "b": 0.45}, **keys if kind is MaskedData else {}))
    whole = endless(data)
    for hosts in (1, 2, 4):
        parts = [endless(data, needed=needed) for needed in np.split(np.arange(8), hosts)]
        for step in (0, 1, 57, 10**6):
            together = [part.batch_at(step) for part in parts]
            for name, values in whole.batch_at(step).items():
                np.testing.assert_array_equal(np.concatenate([each[name] for each in together]), values)


def test_a_change_of_the_hosts_or_of_the_start_changes_nothing(config):
    data = TextData.of(config({"a": 0.55, "b": 0.45}))
    loader = endless(data)
    batches = list(itertools.islice(loader.iterate(31), 5))
    for step, batch in enumerate(batches, 31):
        for name, values in endless(TextData.of(data.config)).batch_at(step).items():
            np.testing.assert_array_equal(batch[name], values)
    assert not np.array_equal(endless(data, seed=4).batch_at(31)["tokens"], batches[0]["tokens"])


def test_the_order_of_the_sources_does_not_matter(config):
    one, other = (TextData.of(config(weights)) for weights in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    np.testing.assert_array_equal(endless(one).batch_at(5)["tokens"], endless(other).batch_at(5)["tokens"])
    assert one.contents() == other.contents()


def test_a_tokenizer_is_trained_on_all_documents(config, tmp_path):
    keys = {"tokenizer": "characters"}
    mixed = TextData.of(config({"a": 0.99, "c": 0.01}, **keys))
    assert {*"ac"} <= {*mixed.tokenizer.decode(range(mixed.tokenizer.vocab_size))}
    alone = TextData(TextDataConfig(source=f"text:{tmp_path}/a.txt", cache_dir=str(tmp_path), **keys))
    assert "c" not in alone.tokenizer.decode(range(alone.tokenizer.vocab_size))


def test_evaluation_reads_every_row_of_every_source_once(config):
    data = TextData.of(config({"a": 0.5, "b": 0.5}))
    loader = data.loader("validation", 8)
    read = sum(batch["bytes"].sum() for batch in loader.iterate())
    assert read == len("".join(data.text("validation")).encode())
    assert len([*loader.iterate()]) == len(loader) == sum(map(len, loader.parts.values()))
    for start in range(len(loader) + 1):
        rest = [*loader.iterate(start)]
        assert len(rest) == len(loader) - start
    np.testing.assert_array_equal(rest[-1]["tokens"] if rest else 0, 0)
    last, *_ = [*loader.iterate(len(loader) - 1)]
    np.testing.assert_array_equal(last["tokens"], [*loader.iterate()][-1]["tokens"])


def test_a_validation_source_of_its_own_is_one(config, tmp_path):
    data = TextData.of(config({"a": 1, "b": 1}, validation_source=f"text:{tmp_path}/c.txt"))
    assert {*data.parts("validation")} == {""} and {*data.parts("train")} == {"a", "b"}
    assert "".join(data.text("validation")) == (tmp_path / "c.txt").read_text()
    assert "".join(data.text("train")) == "".join((tmp_path / f"{each}.txt").read_text() for each in "ab")
    assert not data.loader("validation", 8).parts
    assert data.contents().keys() == {"sources[0]", "sources[1]", "validation_source"}


def test_arrays_that_only_one_source_has_are_left_out(config, tmp_path):
    """`bytes`, where a tokenizer loses something of one source."""
    (tmp_path / "b.txt").write_text("B is in capitals\n" * 500)
    (tmp_path / "a.txt").write_text("a is not\n" * 500)
    data = TextData.of(config({"a": 1, "b": 1}, tokenizer="bpe", vocab_size=270, lowercase=True))
    batch = endless(data).batch_at(0)
    assert "bytes" not in batch and "tokens" in batch
    evaluated = data.loader("validation", 8)
    assert ["bytes" in part.batch_at(0) for part in evaluated.parts.values()] == [True, False]
    assert "bits_per_byte is left out" in evaluated.rows.why


def test_the_content_of_each_source_is_kept(config, tmp_path):
    from transformer.data.cache.content_digests import changes

    made = config({"a": 1, "b": 1})
    before = TextData.of(made).contents()
    assert before.keys() == {"sources[0]", "sources[1]"}
    (tmp_path / "b.txt").write_text("b" * 16)
    assert (
        changes(before, TextData.of(made).contents()) == "data.sources[1]: b.txt had 16,000 bytes and has 16"
    )


def test_names_are_short_and_different():
    assert short_names(["stdlib", "text:/my/books/*.txt"]) == ["stdlib", "books"]
    assert short_names(["text:/a/wiki.txt.gz", "tfds:glue/sst2"]) == ["wiki", "sst2"]
    assert short_names(["stdlib", "text:/a/x.txt", "text:/b/x.txt"]) == ["stdlib", "a_x", "b_x"]
    assert short_names(["text:/a/*.txt", "text:/a/*.md"]) == ["text_a_1", "text_a_2"]


BAD = {
    "alone": ({"a": 1}, r"^sources: only 'text:.*a\.txt'; give several, or one as source$"),
    "zero": ({"a": 1, "b": 0}, r"^sources: 'text:.*b\.txt' has the weight 0; expected a positive"),
    "negative": ({"a": 1, "b": -0.5}, r"'text:.*b\.txt' has the weight -0\.5; expected a positive"),
    "nan": ({"a": 1, "b": math.nan}, r"'text:.*b\.txt' has the weight nan; expected a positive"),
    "infinite": ({"a": 1, "b": math.inf}, r"'text:.*b\.txt' has the weight inf; expected a positive"),
    "boolean": ({"a": 1, "b": True}, r"'text:.*b\.txt' has the weight True; expected a positive"),
    "text": ({"a": 1, "b": "2"}, r"'text:.*b\.txt' has the weight '2'; expected a positive"),
    "group": ({"a": 1, "b": {"txt": 1}}, r"b\.txt: a dot divides keys; give all sources as --config\."),
    "twice": ({"a": 1, "b/../a": 1}, r"a\.txt' and 'text:.*a\.txt' are the same source; give it once$"),
    "missing": ({"a": 1, "none": 1}, r"^data\.sources: text:.*none\.txt: no such file$"),
    "empty": ({"a": 1, "empty": 1}, r"^data\.sources: text:.*empty\.txt: the file is empty$"),
    "uneven": ({"a": 1, "b": math.pi}, r"^sources: the weights 1, 3\.14.* are not multiples of"),
}


@pytest.mark.parametrize("name", BAD)
def test_impossible_mixtures_are_refused_in_a_line(name, config, tmp_path):
    weights, said = BAD[name]
    (tmp_path / "empty.txt").touch()
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=said) as raised:
        endless(TextData.of(config(weights)))
    assert "\n" not in str(raised.value)


def test_a_source_smaller_than_a_row_is_refused(config, tmp_path):
    (tmp_path / "small.txt").write_text("x\n" * 7)
    said = r"^data\.sources: text:.*small\.txt: 16 tokens to train on, but a row of .* 16 needs 17$"
    with pytest.raises(UserError, match=said):
        endless(TextData.of(config({"a": 1, "small": 1})))


def test_a_source_without_validation_text_is_named(config, tmp_path):
    (tmp_path / "line.txt").write_text("one line of some length, and no other\n")
    with pytest.raises(UserError, match=r"^data\.sources: text:.*line\.txt \(validation\): no text; give "):
        TextData.of(config({"a": 1, "line": 1})).loader("validation", 8)


def test_source_and_sources_are_not_given_together(config):
    with pytest.raises(UserError, match=r"^source: 'snippets' together with sources; leave it"):
        TextData.of(config({"a": 1, "b": 1}, source="snippets"))
    with pytest.raises(UserError, match=r"^sources: 'xls:x'; expected one of stdlib, text"):
        TextDataConfig(sources={"stdlib": 1, "xls:x": 1})
    with pytest.raises(UserError, match=r"^config\.sources: 3 \(int\); expected a mapping$"):
        from_values(TextDataConfig, {"sources": 3})
    with pytest.raises(UserError, match=r"^sources: frequencies of words"):
        SkipGramDataConfig(sources={"stdlib": 1, "snippets": 1})


def test_one_source_is_no_mixture(tmp_path):
    assert not isinstance(TextData.of(TextDataConfig(tokenizer="bytes")), Mixture)
