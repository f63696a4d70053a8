"""Qwen3-Next of transformers, in and out."""

import pytest

from tests.interop import parity
from transformer.config import from_values
from transformer.interop import FAMILIES
from transformer.models.decoder import DecoderConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

FAMILY = FAMILIES["qwen3_next"][0]

SMALL = {
    **{"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"head_dim": 16, "vocab_size": 300, "max_position_embeddings": 160, "moe_intermediate_size": 20},
    **{"num_experts": 5, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 12},
    **{"linear_num_value_heads": 6, "linear_num_key_heads": 2, "linear_key_head_dim": 8},
    "rms_norm_eps": 1e-3,  # with less of it small outputs of states have large rounding errors, theirs too
    **{"linear_value_head_dim": 4, "bos_token_id": 256, "eos_token_id": 256, "pad_token_id": None},
}

DELTA, FULL = "linear_attention", "full_attention"

MODELS = {
    "every_fourth": ({}, 60),
    "in_any_order": (
        {
            **{
                "layer_types": [FULL, DELTA, DELTA, FULL],
                "num_hidden_layers": 4,
                "tie_word_embeddings": True,
            },
            **{"linear_num_key_heads": 6, "linear_conv_kernel_dim": 3, "rms_norm_eps": 2e-3},
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
        },
        60,
    ),
    "attention_alone": ({"layer_types": [FULL] * 2, "num_hidden_layers": 2}, 20),
    "delta_rules_alone": (
        {"layer_types": [DELTA] * 2, "num_hidden_layers": 2, "linear_conv_kernel_dim": 2},
        30,
    ),
}
"""Name -> config and the least number of wrong tables."""


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    keys, count = MODELS[request.param]
    made = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**SMALL | keys))
    folder = tmp_path_factory.mktemp(request.param)
    return (
        parity.Imported(parity.save(made, folder, 1, std=0.2 if made.config.tie_word_embeddings else 0.1)),
        made,
        count,
    )


@pytest.mark.thorough(but=1)
def test_logits(model, rng):
    parity.check_logits(*model[:2], rng, 48)


@pytest.mark.thorough
def test_greedy(model, rng):
    parity.check_greedy(*model[:2], rng)


@pytest.mark.thorough(but=1)
def test_round_trip(model, tmp_path, rng):
    parity.check_round_trip(*model[:2], tmp_path, rng)


@pytest.mark.thorough
def test_copies(model, tmp_path):
    """Published files have layers that predict further tokens, which are not a part of the model."""
    parity.check_copies(model[0], tmp_path, "mtp.layers.0.mlp.gate.weight", "mtp.norm.weight")


@pytest.mark.thorough
def test_a_wrong_entry_of_the_table_is_caught(model, rng):
    parity.check_broken_tables(model[0], rng, 40, at_least=model[2])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'; only 'silu' is known here"),
        ({"norm_topk_prob": False}, "norm_topk_prob: False; only True"),
        ({"mlp_only_layers": [1]}, r"mlp_only_layers: \[1\]; only \[\]"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step: 2; only 1"),
        ({"attention_bias": True}, "attention_bias: True; only False"),
        ({"num_experts": 0}, "num_experts: 0; expected a whole number of at least 1"),
        ({"num_experts_per_tok": 1}, "num_experts_per_tok: 1; expected a whole number of at least 2"),
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size: 0; expected a whole"),
        ({"linear_num_key_heads": 1}, "linear_num_key_heads: 1 with linear_num_value_heads 6; only 2 or"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim: 1; expected a whole number of at least 2"),
        ({"layer_types": [DELTA, "sliding_attention"]}, "layer_types: 'sliding_attention'; expected one of"),
        ({"layer_types": [DELTA, FULL]}, "layer_types: 2 of them; the model has 4 layers"),
        ({"full_attention_interval": 0}, "full_attention_interval: 0; expected a whole number"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_type: 'yarn' with partial_rotary_factor 0.25; only 1",
        ),
        ({"use_sliding_window": True}, "use_sliding_window: True; only False"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_their_name(changes, said):
    with pytest.raises(parity.UserError, match=f"^{said}"):
        FAMILY.model(SMALL | changes)


@pytest.mark.parametrize(
    ("of", "changes", "said"),
    [
        ("", {"feed_forward": "geglu"}, "model.feed_forward: 'geglu', 'qwen3_next' has 'swiglu'"),
        ("", {"norm": "rms"}, "model.norm: 'rms', 'qwen3_next' has 'rms_offset'"),
        ("", {"shared_gate": False}, "model.shared_gate: False, 'qwen3_next' has True"),
        ("", {"experts_per_token": 1}, "model.experts_per_token: 1; such models have 2 or more"),
        ("", {"shared_d_ff": 0, "shared_gate": False}, "model.shared_d_ff: 0; such models have 1"),
        ("", {"qk_norm": False}, "model.layer_kinds.full.qk_norm: False, 'qwen3_next' has True in such"),
        ("full", {"sinks": True}, "model.layer_kinds.full.sinks: True, 'qwen3_next' has False"),
        ("full", {"mixer": "multi_head"}, "model.layer_kinds.full.mixer: 'multi_head'; expected 'gated_"),
        ("full", {"pattern": "window"}, "model.layer_kinds.full.pattern: 'window', 'qwen3_next' has"),
        ("full", {"position": "none"}, "model.layer_kinds.full.position: 'none', 'qwen3_next' has 'rope'"),
        ("full", {"d_ff": 24}, "model.layer_kinds.full.d_ff: 24, 'qwen3_next' has 20 in such layers"),
        ("linear", {"num_experts": 4}, "model.layer_kinds.linear.num_experts: 4, 'qwen3_next' has 5"),
        ("linear", {"negative_eigenvalues": True}, "model.layer_kinds.linear.negative_eigenvalues: True"),
        ("linear", {"num_key_heads": 1}, "model.layer_kinds.linear.num_key_heads: 1 with num_heads 6"),
        ("linear", {"conv_width": 1}, "model.layer_kinds.linear.conv_width: 1, no convolution"),
        ("linear", {"mixer": "delta"}, "model.layer_kinds.linear.mixer: 'delta'; expected 'gated_delta'"),
    ],
)
def test_what_such_models_do_not_have_is_not_written(of, changes, said):
    keys = FAMILY.model(SMALL)
    if of:
        kinds = keys["layer_kinds"]
        keys |= {"layer_kinds": kinds | {of: kinds[of] | changes}}
    config = from_values(DecoderConfig, keys | ({} if of else changes))
    with pytest.raises(parity.UserError, match=f"^{said}"):
        FAMILY.config(config)


def test_kinds_of_any_name_over_a_base_of_delta_rules():
    """As a config of a run from scratch has them: the keys of attention in the kind that has it."""
    keys = FAMILY.model(SMALL)
    delta = keys["layer_kinds"]["linear"]
    attention = {key: keys[key] for key in ("mixer", "num_heads", "num_kv_heads", "head_dim", "qk_norm")}
    attention |= {key: keys[key] for key in ("qk_norm_epsilon", "position_fraction")}
    mine = {key: value for key, value in keys.items() if key not in attention} | delta
    mine |= {"layers": ["a", "b", "a", "z"], "layer_kinds": {"a": {}, "b": {}, "z": attention}}
    config = from_values(DecoderConfig, mine)
    assert FAMILY.config(config) == FAMILY.config(from_values(DecoderConfig, keys))


def test_without_a_list_every_nth_layer_has_attention():
    """As in transformers, also with its own defaults of all keys."""
    for keys in ({}, {"full_attention_interval": 3, "num_hidden_layers": 7}):
        theirs = transformers.Qwen3NextConfig(**keys)
        sizes = {"vocab_size": 10, "hidden_size": 32, "num_hidden_layers": 48, "rms_norm_eps": 1e-6}
        sizes |= {"max_position_embeddings": 64, **keys}
        listed = FAMILY.model(sizes | {"layer_types": theirs.layer_types})
        assert FAMILY.model(sizes) == listed
        for ours, name in (("num_experts", "num_experts"), ("experts_per_token", "num_experts_per_tok")):
            assert listed[ours] == getattr(theirs, name)
        assert listed["layer_kinds"]["linear"]["num_key_heads"] == theirs.linear_num_key_heads
        assert listed["shared_d_ff"] == theirs.shared_expert_intermediate_size
        assert listed["position_fraction"] == theirs.rope_parameters["partial_rotary_factor"]
