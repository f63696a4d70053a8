"""Gemma of transformers, in and out."""

import pytest

from tests.interop import parity
from tests.interop.test_llama import SMALL

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

GEMMA = SMALL | {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 20}

LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}

MODELS = {
    "gemma2": (
        ("Gemma2Config", "Gemma2ForCausalLM"),
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "num_hidden_layers": 3},
    ),
    "gemma3": (
        ("Gemma3TextConfig", "Gemma3ForCausalLM"),
        {"rope_parameters": LINEAR, "layer_types": ["sliding_attention", "full_attention"]},
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    (config, kind), keys = MODELS[request.param]
    made = getattr(transformers, kind)(getattr(transformers, config)(**GEMMA | keys))
    folder = tmp_path_factory.mktemp(request.param)
    return parity.Imported(parity.save(made, folder, 2, embedding=0.2)), made


@pytest.mark.thorough(but=1)
def test_logits(model, rng):
    parity.check_logits(*model, rng, 48)


@pytest.mark.thorough
def test_greedy(model, rng):
    parity.check_greedy(*model, rng)


def test_round_trip(model, tmp_path, rng):
    parity.check_round_trip(*model, tmp_path, rng)


def test_a_wrong_entry_of_the_table_is_caught(model, rng):
    parity.check_broken_tables(model[0], rng, 40, at_least=20)
