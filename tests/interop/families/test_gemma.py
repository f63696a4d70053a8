"""Gemma of transformers, in and out."""

import copy

import pytest

from tests.interop import parity
from tests.interop.families.test_llama import SMALL
from transformer.interop import FAMILIES

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


NAMES = {"soft_cap": "attn_logit_softcapping", "logit_soft_cap": "final_logit_softcapping"}


@pytest.mark.parametrize(("kind", "caps"), [("gemma2", (50.0, 30.0)), ("gemma3_text", (0.0, 0.0))])
def test_a_missing_cap_is_the_default_of_transformers_and_null_is_none(kind, caps):
    family, default = FAMILIES[kind][0], transformers.AutoConfig.for_model(kind)
    assert caps == tuple(getattr(default, name) or 0.0 for name in NAMES.values())
    for config, wanted in ((SMALL, caps), (SMALL | dict.fromkeys(NAMES.values()), (0.0, 0.0))):
        found = {"soft_cap": 0.0} | family.model(config)
        assert (found["soft_cap"], found["logit_soft_cap"]) == wanted


def test_of_both_keys_of_rotary_positions_the_older_counts():
    """As in transformers, whose config says which base and scaling full attention has."""
    scaled = {"rope_type": "linear", "factor": 3.0}
    for kind in ("llama", "qwen2", "gemma2", "gemma3_text"):
        ropes = LINEAR if kind == "gemma3_text" else {"rope_type": "default", "rope_theta": 500.0}
        keys = SMALL | {"rope_theta": 70.0, "rope_scaling": scaled, "rope_parameters": ropes}
        keys |= {"layer_types": ["sliding_attention", "full_attention"]} if "gemma" in kind else {}
        theirs = transformers.AutoConfig.for_model(kind, **copy.deepcopy(keys)).rope_parameters
        theirs = theirs.get("full_attention", theirs)
        found = FAMILIES[kind][0].model(keys)
        assert theirs["rope_type"] == found["position_scaling"]
        assert (theirs["rope_theta"], theirs["factor"]) == (found["position_base"], found["position_factor"])


@pytest.mark.thorough
def test_windows_in_all_layers_leave_out_the_scaling_of_full_attention(tmp_path, rng):
    (config, of), keys = MODELS["gemma3"]
    keys = GEMMA | keys | {"layer_types": ["sliding_attention"] * 2}
    made = getattr(transformers, of)(getattr(transformers, config)(**keys))
    imported = parity.Imported(parity.save(made, tmp_path, 2, embedding=0.2))
    assert (imported.hub.model.position_scaling, imported.hub.model.position_base) == ("none", 100.0)
    parity.check_logits(imported, made, rng, 48)
    parity.check_round_trip(imported, made, tmp_path, rng)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.thorough(but=1)
def test_without_windows_it_is_a_model_of_theirs_again(kind, tmp_path, rng):
    """Which makes the mask of a window even where no layer has one."""
    (config, of), keys = MODELS[kind]
    keys = GEMMA | keys | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    made = getattr(transformers, of)(getattr(transformers, config)(**keys))
    imported = parity.Imported(parity.save(made, tmp_path, 2, embedding=0.2))
    parity.check_round_trip(imported, made, tmp_path, rng)


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
