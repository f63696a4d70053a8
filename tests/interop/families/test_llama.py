"""Llama and its relatives of transformers, in and out, also with experts."""

import dataclasses

import pytest

from tests.interop import parity
from transformer.config import from_values
from transformer.interop import FAMILIES
from transformer.models.decoder import DecoderConfig

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
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": 9}, 20),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **{"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "head_dim": 10},
            "norm_topk_prob": True,
        },
        20,
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "pad_token_id": 0}, 12),
    "arcee": ("Arcee", {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "head_dim": 8}, 12),
    "arcee_squared": ("Arcee", {"rope_parameters": YARN}, 12),
}
"""Name -> class, config and the least number of wrong tables."""

SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("llama", {"rope_theta": 0}, "rope_theta: 0; expected a number above 0"),
        ("llama", {"rope_parameters": {"rope_theta": 0}}, "rope_theta: 0; expected a number above 0"),
        ("llama", {"rope_theta": "500000"}, "rope_theta: '500000'; expected a number above 0"),
        ("qwen2", SLIDING, "layer_types: 'sliding_attention', but no sliding_window that is used"),
        ("qwen3", SLIDING | {"use_sliding_window": True, "sliding_window": None}, "no sliding_window"),
        ("gemma3_text", {"rope_local_base_freq": 0}, "rope_local_base_freq: 0; expected a number above 0"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 90.0}}, "rope_parameters: .* expected an object"),
        ("gemma3_text", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping: 2.0; only None is known"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: 0; expected a number above 0"),
        ("gemma2", {"query_pre_attn_scalar": "256"}, "query_pre_attn_scalar: '256'; expected a number"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_their_name(family, changes, said):
    with pytest.raises(parity.UserError, match=said):
        FAMILIES[family][0].model(SMALL | changes)


@pytest.mark.parametrize("scaling", ["yarn", "llama3"])
def test_a_trained_length_that_is_no_whole_number_is_refused(scaling):
    """Rounded, it would give other frequencies."""
    sizes = {"d_model": 8, "num_heads": 2, "norm": "rms", "feed_forward": "swiglu", "max_length": 64}
    config = DecoderConfig(**sizes, position_scaling=scaling, position_factor=1.6)
    assert FAMILIES["llama"][0].config(config)["rope_scaling"]["original_max_position_embeddings"] == 40
    with pytest.raises(
        parity.UserError, match=r"^model.position_original_length: 0, for max_length 64 / .* 1.5; such"
    ):
        FAMILIES["llama"][0].config(dataclasses.replace(config, position_factor=1.5))


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text"])
def test_two_epsilons_of_norms_are_not_written_as_one(name):
    family = FAMILIES[name][0]
    config = from_values(DecoderConfig, family.model(SMALL | {"rms_norm_eps": 1e-4}))
    assert family.config(config)["rms_norm_eps"] == 1e-4
    said = "model.qk_norm_epsilon: 1e-06 with model.norm_epsilon: 0.0001; such models have one rms_norm_eps"
    with pytest.raises(parity.UserError, match=f"^{said}$"):
        family.config(dataclasses.replace(config, qk_norm_epsilon=1e-6))


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        (
            "mixtral",
            {"num_experts_per_tok": 1},
            "num_experts_per_tok: 1; expected a whole number of at least 2",
        ),
        ("qwen3_moe", {}, "norm_topk_prob: False, also where it is missing"),
        (
            "qwen3_moe",
            {"norm_topk_prob": True, "mlp_only_layers": [1]},
            r"mlp_only_layers: \[1\]; only layers",
        ),
        (
            "qwen3_moe",
            {"norm_topk_prob": True, "decoder_sparse_step": 2},
            "decoder_sparse_step: 2; only 1 is",
        ),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers: 1 of them; the model has 2 layers"),
        ("smollm3", {"use_sliding_window": True}, "use_sliding_window: True; only False"),
    ],
)
def test_what_experts_and_layers_cannot_be_is_refused(family, changes, said):
    with pytest.raises(parity.UserError, match=said):
        FAMILIES[family][0].model(SMALL | changes)


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("mixtral", {"experts_per_token": 1}, "model.experts_per_token: 1; such models compute another"),
        ("mixtral", {"layers": ("a",), "layer_kinds": {"a": {}}}, "such models have layers of one kind"),
        (
            "smollm3",
            {"layer_kinds": {"rope": {"qk_norm": True}}, "layers": ("rope",)},
            "rope.qk_norm: True, such",
        ),
        (
            "smollm3",
            {"position": "alibi", "layers": (), "layer_kinds": {}},
            "model.position: 'alibi'; expected",
        ),
    ],
)
def test_what_such_models_do_not_have_is_not_written(family, changes, said):
    config = from_values(DecoderConfig, FAMILIES[family][0].model(SMALL))
    with pytest.raises(parity.UserError, match=said):
        FAMILIES[family][0].config(dataclasses.replace(config, **changes))


def test_without_a_list_every_fourth_layer_has_no_positions():
    family, sizes = FAMILIES["smollm3"][0], SMALL | {"num_hidden_layers": 9}
    theirs = transformers.SmolLM3Config(**sizes, pad_token_id=0).no_rope_layers
    assert family.model(sizes)["layers"] == family.model(sizes | {"no_rope_layers": theirs})["layers"]


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


@pytest.mark.thorough
def test_copies(model, tmp_path):
    """Older files have the frequencies of rotary positions in each layer."""
    inner = (f"model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in range(2))
    parity.check_copies(model[0], tmp_path, *inner)


@pytest.mark.thorough
def test_a_wrong_entry_of_the_table_is_caught(model, rng):
    imported, _, count = model
    parity.check_broken_tables(imported, rng, 40, at_least=count)
