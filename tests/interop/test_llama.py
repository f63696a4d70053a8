"""Llama, Mistral and Qwen of transformers, in and out."""

import pytest

from tests.interop import parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

SMALL = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 40, "vocab_size": 300, "max_position_embeddings": 160, "bos_token_id": 256},
    "eos_token_id": 256,
}

LLAMA3 = {
    **{"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    **{"original_max_position_embeddings": 40, "rope_theta": 500.0},
}

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 80, "rope_theta": 1000.0}

MODELS = {
    "llama2": ("Llama", {"rms_norm_eps": 1e-5}, 12),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 8, "tie_word_embeddings": True}, 12),
    "mistral": ("Mistral", {"sliding_window": 7}, 12),
    "qwen2": ("Qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}, 20),
    "qwen3": (
        "Qwen3",
        {
            "head_dim": 10,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
            "rms_norm_eps": 1e-4,
        },
        20,
    ),
}
"""Name -> class, config and the least number of wrong tables."""


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    kind, keys, count = MODELS[request.param]
    made = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**SMALL | keys))
    folder = tmp_path_factory.mktemp(request.param)
    return parity.Imported(parity.save(made, folder, 1)), made, count


@pytest.mark.thorough(but=1)
def test_logits(model, rng):
    parity.check_logits(*model[:2], rng, 48)


@pytest.mark.thorough
def test_greedy(model, rng):
    parity.check_greedy(*model[:2], rng)


def test_round_trip(model, tmp_path, rng):
    parity.check_round_trip(*model[:2], tmp_path, rng)


def test_a_wrong_entry_of_the_table_is_caught(model, rng):
    imported, _, count = model
    parity.check_broken_tables(imported, rng, 40, at_least=count)
