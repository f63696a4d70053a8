"""What is suggested for a path without the kind of its source, and for a misspelt kind."""

import pytest

from transformer.data.chat.chat import KINDS
from transformer.data.images.images import IMAGES
from transformer.data.source_names import suggest_kind
from transformer.data.sources import SOURCES


@pytest.mark.parametrize(
    ("file", "kinds", "meant"),
    [
        ("a.txt", SOURCES, "text:{}"),
        ("a.JSONL.gz", SOURCES, "jsonl:{}"),
        ("a.csv", SOURCES, "csv:{}"),
        ("a.parquet", SOURCES, "parquet:{}"),
        ("notes", SOURCES, "text:{}"),
        ("a.jsonl", KINDS, "jsonl:{}"),
        ("texts/a.txt", SOURCES, "text:{}/*"),
        ("set/dataset_info.json", SOURCES, "hf:{}"),
        ("classes/a.png", IMAGES, "folder:{}"),
    ],
)
def test_a_path_that_exists_is_suggested_with_the_kind_that_reads_it(tmp_path, file, kinds, meant):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    place = path if path.parent == tmp_path else path.parent
    assert suggest_kind(str(place), kinds) == f"did you mean '{meant.format(place)}'?"


def test_a_misspelt_kind_keeps_its_path():
    assert suggest_kind("txt:/my/*.txt", SOURCES) == "did you mean 'text:/my/*.txt'?"


@pytest.mark.parametrize(("name", "kinds"), [("/no/file.txt", SOURCES), ("xls:a", SOURCES), ("a.txt", KINDS)])
def test_otherwise_all_kinds_are_listed(name, kinds):
    assert suggest_kind(name, kinds) == f"expected one of {', '.join(kinds)}, then :PATH or :NAME"
