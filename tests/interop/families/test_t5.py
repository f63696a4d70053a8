"""T5 and mT5 of transformers, in and out: version 1.0, version 1.1, and 1.1 with an output of its own."""

import json

import pytest

from tests.interop import pairs, parity
from transformer.interop.families.t5 import MT5, T5

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

SIZES = {
    **{"vocab_size": 300, "d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 3},
    **{"num_heads": 2, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12},
    **{"decoder_start_token_id": 0},
}
VERSIONS = {
    "1.0": {},
    "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mT5": {},
    "1.1 untied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}


@pytest.fixture(scope="module", params=VERSIONS)
def theirs(request, tmp_path_factory):
    folder, version = tmp_path_factory.mktemp("t5"), VERSIONS[request.param]
    kind = "MT5" if request.param == "mT5" else "T5"
    config = getattr(transformers, f"{kind}Config")(**SIZES | version)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    if "untied" in request.param:
        model.lm_head.weight = torch.nn.Parameter(torch.randn(300, 16))
        model.config.tie_word_embeddings = False
    parity.save(model, folder, 0, std=0.3)
    if "untied" in request.param:  # as the released files of version 1.1 say it
        config = json.loads((folder / "config.json").read_text())
        del config["scale_decoder_outputs"]
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return folder, model


@pytest.fixture(scope="module")
def imported(theirs):
    return pairs.Pairs(theirs[0])


@pytest.mark.thorough(but=1)
def test_logits(imported, theirs, rng):
    pairs.check_logits(imported, theirs[1], rng)


def test_round_trip(imported, theirs, tmp_path, rng):
    pairs.check_round_trip(imported, theirs[1], tmp_path / "out", rng)


@pytest.mark.thorough
@pytest.mark.parametrize("theirs", ["1.0", "1.1"], indirect=True)
def test_greedy_and_beam_search(imported, theirs):
    pairs.check_search(imported, theirs[1], 1, 64, ends=False)
    pairs.check_search(imported, theirs[1], 4, 16, ends=False)


@pytest.mark.thorough
def test_copies(imported, tmp_path):
    parity.check_copies(imported, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("theirs", ["1.1 untied"], indirect=True)
def test_a_wrong_entry_of_the_table_is_caught(imported, rng):
    pairs.check_broken_tables(imported, rng, at_least=50)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"dense_act_fn": "gelu"},
            "dense_act_fn: 'gelu' with feed_forward_proj 'gated-gelu'; expected 'gelu_new'",
        ),
        ({"is_gated_act": False}, "is_gated_act: False with feed_forward_proj 'gated-gelu'; expected True"),
    ],
)
def test_an_activation_that_is_said_twice_is_the_same(changes, said):
    agreed = SIZES | {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}
    assert T5.model(agreed)["feed_forward"] == "geglu"
    with pytest.raises(parity.UserError, match=said):
        T5.model(agreed | changes)


def test_missing_keys_of_an_mt5_have_its_own_defaults():
    theirs = transformers.MT5Config().to_dict()
    assert MT5.model({}) == MT5.model({key: theirs[key] for key in theirs if key in MT5.known})
