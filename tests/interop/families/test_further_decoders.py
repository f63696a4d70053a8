"""GPT-NeoX, OLMo 2, Phi-3 and gpt-oss of transformers, in and out."""

import dataclasses

import numpy as np
import pytest

from tests.interop import parity
from transformer.config import from_values
from transformer.interop import FAMILIES
from transformer.models.decoder import DecoderConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

SMALL = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40},
    **{"vocab_size": 300, "max_position_embeddings": 160, "bos_token_id": 256, "eos_token_id": 256},
    "pad_token_id": None,
}
OWN = {"gpt_neox": {"rotary_pct": 0.5}, "gpt_oss": {"num_key_value_heads": 2}}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}

MODELS = {
    "pythia": ("GPTNeoX", {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 90.0}}, 20),
    "neox_in_turn": (
        "GPTNeoX",
        {
            **{"use_parallel_residual": False, "tie_word_embeddings": True, "hidden_act": "gelu_new"},
            "rope_parameters": {
                **{"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
                "partial_rotary_factor": 1.0,
            },
        },
        20,
    ),
    "olmo2": ("Olmo2", GROUPED | {"rms_norm_eps": 1e-4}, 20),
    "phi3": ("Phi3", GROUPED | {"sliding_window": 7, "tie_word_embeddings": True}, 12),
    "phi4": (
        "Phi3",
        {"rope_parameters": {"rope_theta": 70.0, "partial_rotary_factor": 0.5}, "rms_norm_eps": 1e-4},
        12,
    ),
    "gpt_oss": (
        "GptOss",
        {
            **GROUPED | {"head_dim": 10, "num_local_experts": 4, "num_experts_per_tok": 3},
            **{"num_hidden_layers": 3, "sliding_window": 6},
            "rope_parameters": {
                **{"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0},
                **{"truncate": False, "original_max_position_embeddings": 40, "rope_theta": 150.0},
            },
        },
        30,
    ),
}
"""Name -> class, config and the least number of wrong tables."""


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("gpt_neox", {"attention_bias": False}, "attention_bias: False; only True"),
        ("gpt_neox", {"rotary_emb_base": 0}, "rotary_emb_base: 0; expected a number above 0"),
        (
            "gpt_neox",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_type: 'yarn' with rotary_pct 0.25; only 1",
        ),
        ("olmo2", {"attention_bias": True}, "attention_bias: True; only False"),
        (
            "phi3",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}},
            "rope_scaling.type: 'longrope'; only positions without a scaling",
        ),
        (
            "gpt_oss",
            {"quantization_config": {"quant_method": "mxfp4"}},
            "quantization_config: 'mxfp4'; only weights without it are read; save it in bfloat16: from",
        ),
        ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit: 5.0; only 7.0"),
        ("gpt_oss", {"num_experts_per_tok": 1}, "num_experts_per_tok: 1; expected a whole number of at"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_their_name(family, changes, said):
    with pytest.raises(parity.UserError, match=f"^{said}"):
        FAMILIES[family][0].model(SMALL | changes)


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        (
            "gpt_neox",
            {"position_scaling": "yarn", "position_factor": 2.0},
            "model.position_scaling: 'yarn' with position_fraction below 1",
        ),
        (
            "gpt_neox",
            {"parallel_norms": False},
            "model.parallel_norms: False with model.parallel_sublayers: True",
        ),
        ("olmo2", {"qk_norm_joint": False}, "model.qk_norm_joint: False, 'olmo2' has True"),
        (
            "phi3",
            {"layers": ("a",), "layer_kinds": {"a": {"qk_norm": True}}},
            "model.layer_kinds.a.qk_norm: T",
        ),
        ("phi3", {"position_scaling": "linear", "position_factor": 2.0}, "model.position_scaling: 'linear'"),
        ("gpt_oss", {"experts_per_token": 1}, "model.experts_per_token: 1; such models compute another"),
        ("gpt_oss", {"sinks": False}, "model.sinks: False, 'gpt_oss' has True"),
        ("olmo2", {"norm_placement": "pre"}, "model.norm_placement: 'pre', 'olmo2' has 'output'"),
    ],
)
def test_what_such_models_do_not_have_is_not_written(family, changes, said):
    config = from_values(DecoderConfig, FAMILIES[family][0].model(SMALL | OWN.get(family, {})))
    with pytest.raises(parity.UserError, match=f"^{said}"):
        FAMILIES[family][0].config(dataclasses.replace(config, **changes))


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


@pytest.mark.thorough(but=1)
def test_round_trip(model, tmp_path, rng):
    parity.check_round_trip(*model[:2], tmp_path, rng)


@pytest.mark.thorough
def test_copies(model, tmp_path):
    """Older files have causal masks and frequencies of rotary positions in each layer."""
    kind = model[0].hub.folder.family.model_type
    names = {
        "gpt_neox": [f"gpt_neox.layers.1.attention.{name}" for name in ("bias", "rotary_emb.inv_freq")],
    }
    parity.check_copies(model[0], tmp_path, *names.get(kind, ["model.rotary_emb.inv_freq"]))


@pytest.mark.thorough
def test_a_wrong_entry_of_the_table_is_caught(model, rng):
    imported, _, count = model
    layer = "gpt_neox.layers.{n}"  # whose sublayers are side by side, so that the sum of both biases is added
    beside = [f"{layer}.attention.dense.bias for {layer}.mlp.dense_4h_to_h.bias"]
    same = beside if imported.hub.model.parallel_norms else []
    parity.check_broken_tables(imported, rng, 40, at_least=count, same=same)


def test_the_output_of_gpt_neox_under_its_newer_name(tmp_path, rng):
    """`lm_head`, as transformers 5 names it in memory."""
    from safetensors.numpy import load_file, save_file

    made = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SMALL | OWN["gpt_neox"]))
    folder = parity.save(made, tmp_path, 1)
    right = parity.Imported(folder).params
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    save_file(tensors, folder / "model.safetensors")
    for path, leaf in parity.flat(parity.Imported(folder).params).items():
        np.testing.assert_array_equal(leaf, parity.flat(right)[path], path)


def test_without_a_list_every_other_layer_of_gpt_oss_has_a_window():
    family, sizes = FAMILIES["gpt_oss"][0], SMALL | GROUPED | {"num_hidden_layers": 3}
    theirs = transformers.GptOssConfig(**sizes).layer_types
    assert family.model(sizes) == family.model(sizes | {"layer_types": theirs, "sliding_window": 128})
    assert family.model(sizes)["layers"] == ["sliding", "full"]


@pytest.mark.parametrize("name", ["qwen2", "gpt_oss", "smollm3"])
def test_layers_whose_keys_are_those_of_the_model_do_not_differ(name):
    """As a run that starts from such a model has them, whose trained length is set in each kind of layers."""
    family, window = (
        FAMILIES[name][0],
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    )
    scaled = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 80}
    keys = family.model(SMALL | GROUPED | {"rope_scaling": scaled} | (window if name == "qwen2" else {}))
    config = from_values(DecoderConfig, keys)
    again = dataclasses.replace(config, **config.settled())
    assert any("position_original_length" in kind for kind in again.layer_kinds.values())
    assert family.config(again) == family.config(config)
