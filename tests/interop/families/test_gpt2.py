"""GPT-2 of transformers, in and out."""

import pytest

from tests.interop import parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    config = transformers.GPT2Config(
        n_embd=24, n_layer=2, n_head=2, vocab_size=300, n_positions=80, bos_token_id=256, eos_token_id=256
    )
    folder = tmp_path_factory.mktemp("gpt2")
    model = transformers.GPT2LMHeadModel(config)
    return parity.save(model, folder, 0), model


@pytest.fixture(scope="module")
def imported(theirs):
    return parity.Imported(theirs[0])


def test_logits(imported, theirs, rng):
    parity.check_logits(imported, theirs[1], rng, 40)


def test_greedy(imported, theirs, rng):
    parity.check_greedy(imported, theirs[1], rng)


def test_round_trip(imported, theirs, tmp_path, rng):
    parity.check_round_trip(imported, theirs[1], tmp_path, rng)


def test_copies(imported, tmp_path):
    parity.check_copies(imported, tmp_path, *(f"transformer.h.{n}.attn.bias" for n in range(2)))


def test_a_wrong_entry_of_the_table_is_caught(imported, rng):
    parity.check_broken_tables(imported, rng, 40, at_least=25)
