"""Configs of earlier runs, by the keys there are now."""

import pytest

from commands.retired_keys import with_present_keys
from transformer.config import from_values
from transformer.layers.patterns import Window
from transformer.models.decoder import DecoderConfig

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
