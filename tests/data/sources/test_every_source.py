"""Every member of `SOURCES`: a new one without files is tested without a line of tests, one of files with an
entry of `write` in `test_work`."""

import json

import pytest

from tests.data.sources.test_work import record, write
from transformer.data.sources import SOURCES, open_source
from transformer.data.sources.base import SPLITS
from transformer.data.sources.line_files import JsonLines

FILES = [name for name, kind in SOURCES.items() if kind.is_files]
OWN = [name for name, kind in SOURCES.items() if not kind.is_files and name not in ("tfds", "spans")]
"""`tfds` reads what a data set of TFDS gives, which `test_sources` makes, and `spans` another source, as
`test_spans` asks."""
ARGUMENTS = {"problems": "problems:sorting"}
"""A name that opens a source which has to be told more."""

COUNT = 300


def made(kind, folder, count=COUNT):
    """A source of files with this number of records, and its options."""
    name, options = write("line" if kind == "text" else kind, folder, count)
    return name, {"document": "line"} | options if kind == "text" else options


def opened(name, split, folder, **options):
    return open_source(name, split, cache_dir=folder / "cache", **options)


def check(source, again):
    """What each source owes: exact texts, a name and a place for each, and the same ones each time."""
    assert len(source) == len(again) > 0 and source.identity == again.identity and source.name
    json.dumps(source.content)
    for index in {0, 1, len(source) // 2, len(source) - 1}:
        text = source.text(index)
        assert text and text == "".join(source.pieces(index)) == again.text(index)
        assert source[index] == again[index] and source.place(index)
    with pytest.raises(IndexError):
        source[len(source)]


def test_files_are_read_again_by_a_class_of_another_version(tmp_path, monkeypatch):
    """The places of records are cached, so a change of the code that finds them raises `version`."""
    name, options = made("jsonl", tmp_path / "files")
    before = opened(name, "train", tmp_path, **options)
    assert len(before) > 100

    def none(self, left_out):
        return iter(())

    monkeypatch.setattr(JsonLines, "_blocks", none)
    assert len(opened(name, "train", tmp_path, **options)) == len(before)
    monkeypatch.setattr(JsonLines, "version", 1)
    again = opened(name, "train", tmp_path, **options)
    assert len(again) == 0 and again.identity != before.identity


@pytest.mark.parametrize("kind", FILES)
def test_the_splits_of_a_file_are_its_records_each_once(kind, tmp_path):
    name, options = made(kind, tmp_path / "files")
    texts = {}
    for split in SPLITS:
        source = opened(name, split, tmp_path, **options)
        check(source, opened(name, split, tmp_path, **options))
        texts[split] = [source.text(i).strip() for i in range(len(source))]
    found = [text for each in texts.values() for text in each]
    whole = opened(name, "train", tmp_path, divide=False, **options)
    assert sorted(whole.text(i).strip() for i in range(len(whole))) == sorted(found)
    assert len(texts["train"]) > 0.8 * len(found)
    if kind != "hf":  # whose rows have other texts
        field = options.get("field", "text")
        assert field in record(0), f"`write` gives the field {field!r}; give one of `record`, or add it there"
        assert sorted(found) == sorted(record(i)[field].strip() for i in range(COUNT))


@pytest.mark.parametrize("kind", FILES)
def test_the_identity_of_a_file_changes_when_a_record_does(kind, tmp_path):
    name, options = made(kind, tmp_path / "a")
    other, _ = made(kind, tmp_path / "b", COUNT - 1)
    found = {opened(each, split, tmp_path, **options).identity for each in (name, other) for split in SPLITS}
    assert len(found) == 6


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", OWN)
def test_the_splits_of_a_source_without_files_have_nothing_in_common(kind, tmp_path):
    fields = SOURCES[kind].FIELDS
    options = {"field": fields[0], "fields": fields[:1]}
    keys, identities = {}, set()
    for split in SPLITS:
        name = ARGUMENTS.get(kind, kind)
        source = opened(name, split, tmp_path, **options)
        identities.add(source.identity)
        check(source, opened(name, split, tmp_path, **options))
        by = SOURCES[kind].divided_by or fields[0]
        keys[split] = {json.dumps(source[i][by]) for i in range(len(source))}
    assert len(identities) == len(SPLITS), "two splits have one identity, by which tokens are cached"
    train, validation, test = keys.values()
    assert not train & validation and not train & test and not validation & test
    assert len(train) > len(validation) and len(train) > len(test)
