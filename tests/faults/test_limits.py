"""That what would compute without end, or fill the memory, is refused at once and with its key."""

import time

import pytest

import launch
from tests import runs
from transformer.config import from_values
from transformer.decoding.beam import BeamConfig
from transformer.decoding.sampling import DecodingConfig
from transformer.errors import UserError
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.recurrent import RecurrentConfig

LIMITS = {
    "num_samples: 100000000; expected from 1 to 10,000": (DecodingConfig, {"num_samples": 100_000_000}),
    "beam_size: 1000000; expected from 1 to 1,000": (BeamConfig, {"beam_size": 1_000_000}),
    "num_layers: 9999; expected at most 1,000, or scan_layers=True": (DecoderConfig, {"num_layers": 9999}),
    "num_layers: 1001; expected at most 1,000": (EncoderDecoderConfig, {"num_encoder_layers": 1001}),
    "num_layers: 5000; expected from 1 to 1,000": (RecurrentConfig, {"num_layers": 5000}),
}


@pytest.mark.parametrize("said", LIMITS)
def test_limits(said):
    cls, values = LIMITS[said]
    with pytest.raises(UserError, match=f"config.{said}"):
        from_values(cls, values)
    assert from_values(cls, {})


def test_scanned_layers_may_be_more():
    assert from_values(DecoderConfig, {"num_layers": 9999, "scan_layers": True}).num_layers == 9999


REFUSED = {
    "train.batch_size=1000000000": "train.batch_size: 1,000,000,000 rows of 32 tokens take",
    "model.max_length=1000000000 data.sequence_length=1000000000": "8 rows of 1,000,000,000 tokens take",
    "initialize_from=/nonexistent": "config.initialize_from: /nonexistent does not exist",
    "model.vocab_multiple=1000000000": "model: the training state takes",
}


@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("options", REFUSED)
def test_what_is_too_much_is_refused_with_its_key(options, tmp_path, capfd):
    source, began = runs.write_corpus(tmp_path / "corpus", 9), time.monotonic()
    arguments = runs.tiny(source, tmp_path / "run", *(f"--config.{each}" for each in options.split()))
    assert launch.main(arguments) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert REFUSED[options] in line and not (tmp_path / "run").exists()
    assert time.monotonic() - began < 60
