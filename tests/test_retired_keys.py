"""Configs of earlier runs, by the keys there are now."""

import pytest

from transformer.config import from_values
from transformer.layers.attention.patterns import Window
from transformer.models.decoder import DecoderConfig
from transformer.run_folder import RunFolder
from workdir.compatibility.retired_keys import keep_split, with_present_keys
from workdir.folder import stored_config, write_json

OLD = {"num_heads": 4, "attention": "multi_head", "pattern": "window", "pattern_size": 8, "num_layers": 6}


@pytest.mark.parametrize(("every", "position"), [(0, ""), (1, ""), (2, "none"), (3, "")])
def test_full_every_is_layers_of_two_kinds(every, position):
    old = {"model": OLD | {"full_every": every, "full_position": position}, "data": {"evaluate_on": "test"}}
    values = with_present_keys(old)
    assert values["data"] == {} and "full_every" in old["model"]
    config = from_values(DecoderConfig, values["model"])
    mixers = config.stack(causal=True).mixers
    for i, mixer in enumerate(mixers):
        full = bool(every) and (i + 1) % every == 0
        assert mixer.pattern == (None if full else Window(8))
        assert type(mixer.position).__name__ == ("Position" if full and position else "Rope")


def test_a_recurrent_model_keeps_its_attention():
    old = {"model": {"cell": "gru", "attention": "dot"}}
    assert with_present_keys(old) == old


@pytest.mark.parametrize(
    ("data", "by"),
    [
        ({"source": "jsonl:a", "prompt_field": "p", "chosen_field": "c", "rejected_field": "r"}, "p,c,r"),
        ({"source": "parquet:a", "prompt_field": "", "chosen_field": "c", "rejected_field": "r"}, "c,r"),
        ({"source": "tsv:a", "text_field": "one", "second_field": "two"}, "one,two"),
        ({"source": "tsv:a", "text_field": "one", "second_field": ""}, ""),
        ({"source": "hf:a", "messages_field": "messages"}, "messages"),
        ({"source": "library_questions", "messages_field": "messages"}, ""),
        ({"source": "aligned:a,b", "source_field": "source"}, "place"),
        ({"source": "text:a", "document": "line"}, "place"),
        ({"source": "stdlib", "sources": {"text:a": 1, "text:b": 2}, "document": "paragraph"}, "place"),
        ({"source": "text:a", "document": "file"}, ""),
        ({"source": "aligned:a,b", "validation_source": "aligned:c,d"}, ""),
        ({"source": "aligned:a,b", "split_by": "source"}, "source"),
        ({"source": "aligned:a,b", "overlap": 0.0}, None),
    ],
)
def test_an_old_run_keeps_its_splits(tmp_path, data, by):
    """`split_by` names the rule of the time at which it started, in its config and in a later one."""
    write_json(RunFolder(tmp_path).config, {"experiment": "none", "data": {"split_by": ""} | data})
    there = stored_config(RunFolder(tmp_path))
    assert there["data"]["split_by"] == (by or "")
    given, other = {"data": {"split_by": ""}}, {"data": {"split_by": "another"}}
    for values in (given, other):
        keep_split(values, there)
    assert given["data"]["split_by"] == ("" if "split_by" in data else by or "")
    assert other == {"data": {"split_by": "another"}}
