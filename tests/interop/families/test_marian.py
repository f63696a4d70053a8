"""Marian of transformers, in and out."""

import json
import shutil

import numpy as np
import pytest

from tests.interop import pairs, parity
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding.beam import translate
from transformer.errors import UserError
from transformer.interop.families.marian import MARIAN
from transformer.interop.generation_config import generation_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

SIZES = {
    **{"vocab_size": 300, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "scale_embedding": True},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 20},
    **{"decoder_ffn_dim": 20, "max_position_embeddings": 80, "activation_function": "swish"},
    **{"pad_token_id": 299, "decoder_start_token_id": 299, "eos_token_id": 0, "forced_eos_token_id": None},
}
KINDS = {
    "shared": {},
    "apart": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "activation_function": "relu",
    },
}
"""Of the embeddings; the second kind also has an output of its own."""


@pytest.fixture(scope="module", params=KINDS)
def theirs(request, tmp_path_factory):
    folder, kind = tmp_path_factory.mktemp("marian"), KINDS[request.param]
    model = transformers.MarianMTModel(transformers.MarianConfig(**SIZES | kind))
    model.final_logits_bias = 0.3 * torch.randn(1, 300, generator=torch.Generator().manual_seed(1))
    model.final_logits_bias[0, 0] = 2.0  # some targets end early
    parity.save(model, folder, 0, std=0.3, tokenizer=Tokenizer.blank(300))
    return folder, model


@pytest.fixture(scope="module")
def imported(theirs):
    return pairs.Pairs(theirs[0])


@pytest.mark.thorough
def test_logits(imported, theirs, rng):
    pairs.check_logits(imported, theirs[1], rng)


def test_biases_of_keys(imported, theirs):
    for path, x in pairs.key_biases(imported.params).items():
        stack, kind = path.split("_blocks")[0], "encoder_attn" if "cross" in path else "self_attn"
        layers = getattr(theirs[1].model, stack).layers
        biases = [getattr(layer, kind).k_proj.bias.detach().reshape(2, 8) for layer in layers]
        np.testing.assert_array_equal(x, torch.stack(biases))


def test_round_trip(imported, theirs, tmp_path, rng):
    pairs.check_round_trip(imported, theirs[1], tmp_path / "out", rng)


@pytest.mark.thorough
@pytest.mark.parametrize("theirs", ["shared"], indirect=True)
def test_greedy_and_beam_search(imported, theirs):
    pairs.check_search(imported, theirs[1], 1, 64)
    pairs.check_search(imported, theirs[1], 4, 16)


@pytest.mark.thorough
@pytest.mark.parametrize("theirs", ["shared"], indirect=True)
def test_generation_config_says_what_is_written(theirs, tmp_path):
    """As those of OPUS-MT, in which padding is never written: with the same texts as in transformers."""
    folder, model = theirs
    (written,) = model.generate(torch.ones(1, 1, dtype=torch.long), max_new_tokens=1, do_sample=False)
    said = {
        **{"bad_words_ids": [[299], [int(written[1])], [7, 8]], "suppress_tokens": [9]},
        **{"max_length": 9, "num_beams": 3, "length_penalty": 0.5, "early_stopping": "never"},
        **{"renormalize_logits": True, "no_repeat_ngram_size": 3, "min_length": 0},
    }
    shutil.copytree(folder, tmp_path / "there")
    (tmp_path / "there" / "generation_config.json").write_text(json.dumps(said))
    imported = pairs.Pairs(tmp_path / "there")
    hub, keys = imported.hub, imported.hub.values["generate"]
    assert hub.folder.generation.unfollowed == ["no_repeat_ngram_size=3", "bad_words_ids=[[7, 8]]"]
    assert [hub.folder.tokenizer.find(name) for name in keys["suppress"]] == [9, 299, int(written[1])]
    sources = [row[:length].tolist() for row, length in zip(imported.source, pairs.LENGTHS, strict=True)]
    stepper = hub.experiment.stepper(imported.params)
    found = translate(stepper, sources, hub.experiment.config.generate, eos_id=0, max_source_length=80)
    followed = said | {"bad_words_ids": said["bad_words_ids"][:2], "no_repeat_ngram_size": 0}
    given, valid = torch.tensor(imported.source), torch.tensor(pairs.VALID)
    with torch.no_grad():
        expected_bn = model.generate(given, attention_mask=valid, use_cache=False, **followed).numpy()[:, 1:]
    for ((ours, _),), theirs_n in zip(found, expected_bn, strict=True):
        assert ours == theirs_n[: [*theirs_n.tolist(), 0].index(0)].tolist()
    assert expected_bn.shape[1] == 8
    written = generation_of(hub.experiment.config, hub.folder.tokenizer, hub.folder.config)
    # Pipelines of transformers 4 follow this limit, and take 256 for max_new_tokens.
    assert written["max_length"] == 9 and "max_new_tokens" not in written
    (tmp_path / "there" / "generation_config.json").write_text(json.dumps(written))
    assert pairs.Pairs(tmp_path / "there").hub.values["generate"] == keys
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "there")
    with torch.no_grad():
        found_bn = again.generate(given, attention_mask=valid, use_cache=False)
    np.testing.assert_array_equal(found_bn[:, 1:], expected_bn)


@pytest.mark.thorough
def test_copies(imported, tmp_path):
    parity.check_copies(imported, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("theirs", ["shared"], indirect=True)
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_stored_table_of_positions_must_be_the_one_that_is_computed(imported, theirs, stack, tmp_path):
    """A table in the file is what transformers computes with; older files have one, some in float16."""
    from safetensors.numpy import load_file, save_file

    folder, name = imported.hub.folder.path, f"model.{stack}.embed_positions.weight"
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_text((folder / file).read_text())
    tensors, table = load_file(folder / "model.safetensors"), theirs[1].state_dict()[name].numpy()

    def read(table):
        save_file(tensors | {name: table}, tmp_path / "model.safetensors")
        hub = parity.Hub(str(tmp_path))
        return hub.read(hub.abstract)

    for right in (table, table.astype(np.float16), table[:20]):
        assert read(right)
    interleaved = np.stack(np.split(table, 2, axis=1), axis=2).reshape(table.shape)
    narrow = table[:, :-1].copy()
    for wrong in (interleaved, 2 * table, table[1:], table[:0], narrow, table[0], np.float32(0.0)):
        with pytest.raises(UserError, match=f"{name} has other values than are computed for it here$"):
            read(np.asarray(wrong))


@pytest.mark.thorough
@pytest.mark.parametrize("theirs", ["apart"], indirect=True)
def test_a_wrong_entry_of_the_table_is_caught(imported, rng):
    pairs.check_broken_tables(imported, rng, at_least=100)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decoder_ffn_dim": 24}, "decoder_ffn_dim: 24 and encoder_ffn_dim: 20; only equal ones"),
        ({"decoder_vocab_size": 200}, "decoder_vocab_size: 200 and vocab_size: 300"),
        ({"num_hidden_layers": 6}, "num_hidden_layers: 6 and encoder_layers: 2; only equal ones"),
        ({"normalize_before": True}, "normalize_before: True; only False is known here"),
        ({"activation_function": "tanh"}, "activation_function: 'tanh'; expected one of 'relu'"),
        ({"forced_bos_token_id": 3}, "forced_bos_token_id: 3 has no meaning here for 'marian'"),
    ],
)
def test_what_cannot_be_expressed_is_refused(changes, said):
    with pytest.raises(UserError) as caught:
        MARIAN.model(SIZES | changes)
    assert said in str(caught.value)
