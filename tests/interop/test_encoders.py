"""BERT, DistilBERT, RoBERTa, XLM-RoBERTa, MPNet, ModernBERT and ViT of transformers, in and out."""

import contextlib
import dataclasses
import io
import json
import re

import jax
import numpy as np
import pytest

from tests.interop import parity
from transformer.config import from_values
from transformer.interop import FAMILIES
from transformer.interop import tensor_rules as table
from transformer.interop.families.encoders import bert, modernbert, roberta, vit
from transformer.interop.hub_folder import family_for
from transformer.interop.tensors import open_tensors, write_tensors
from transformer.interop.transfer import load, outputs
from transformer.models.encoder import HeadConfig, TextEncoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("in_root")

LENGTHS, LENGTH = (12, 9, 4), 12
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 2}
TEXT = SIZES | {"vocab_size": 263, "max_position_embeddings": 20}
DISTIL = {"dim": 16, "n_heads": 2, "hidden_dim": 24, "n_layers": 2, "vocab_size": 263}
DISTIL |= {"max_position_embeddings": 500}
LONG = TEXT | {"max_position_embeddings": 500}
MODERN = SIZES | {"vocab_size": 263, "max_position_embeddings": 40, "local_attention": 4, "pad_token_id": 0}
MODERN |= {name: 1 for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")}
ROPE = {"full_attention": {"rope_theta": 160.0}, "sliding_attention": {"rope_theta": 20.0}}
CLASSES = {"id2label": {0: "bad", 1: "good", 2: "neither"}, "label2id": {"bad": 0, "good": 1, "neither": 2}}
CASES = {
    "BertForPreTraining": TEXT | {"type_vocab_size": 3},
    "BertForSequenceClassification": TEXT | CLASSES | {"hidden_act": "gelu_new"},
    "BertForQuestionAnswering": LONG | {"type_vocab_size": 2},
    "DistilBertForMaskedLM": DISTIL | {"activation": "relu"},
    "DistilBertForSequenceClassification": DISTIL | CLASSES,
    "DistilBertForQuestionAnswering": DISTIL,
    "RobertaForMaskedLM": TEXT | {"type_vocab_size": 1, "hidden_act": "relu"},
    "RobertaForSequenceClassification": TEXT | CLASSES | {"pad_token_id": 4},
    "RobertaForQuestionAnswering": LONG | {"pad_token_id": 4},
    "XLMRobertaForMaskedLM": TEXT | {"type_vocab_size": 1, "pad_token_id": 1},
    "XLMRobertaForSequenceClassification": TEXT | CLASSES | {"pad_token_id": 1, "type_vocab_size": 1},
    "XLMRobertaForQuestionAnswering": LONG | {"pad_token_id": 1, "type_vocab_size": 1},
    "MPNetForMaskedLM": TEXT | {"hidden_act": "relu"},
    "MPNetForSequenceClassification": TEXT | CLASSES,
    "MPNetForQuestionAnswering": LONG,
    "ModernBertForMaskedLM": MODERN | {"num_hidden_layers": 5, "rope_parameters": ROPE},
    "ModernBertForSequenceClassification": MODERN
    | CLASSES
    | dict.fromkeys(("norm_bias", "mlp_bias", "attention_bias", "classifier_bias"), True)
    | {"classifier_pooling": "mean", "layer_types": ["sliding_attention", "full_attention"]},
    "ViTForImageClassification": SIZES | CLASSES | {"image_size": 6, "patch_size": 2, "num_channels": 3},
}
BARE = {
    "BertModel": TEXT | {"type_vocab_size": 3},
    "DistilBertModel": DISTIL,
    "RobertaModel": TEXT | {"type_vocab_size": 1, "hidden_act": "relu", "pad_token_id": 4},
    "XLMRobertaModel": TEXT | {"type_vocab_size": 1, "pad_token_id": 1},
    "MPNetModel": TEXT,
    "ModernBertModel": MODERN | {"num_hidden_layers": 5, "rope_parameters": ROPE},
    "ViTModel": SIZES | {"image_size": 6, "patch_size": 2, "num_channels": 3},
}
"""Without a head."""

BARE_CASES = [("BertModel", True), ("BertModel", False), *((name, None) for name in [*BARE][1:])]
"""Names, and whether BERT's pooler is there."""

QUICK = ("BertForPreTraining", "ViTForImageClassification")


class Encoder(parity.Imported):
    """A folder of transformers, and one batch with padding that both libraries compute."""

    def __init__(self, folder, theirs, rng):
        self.theirs, self.hub = theirs, parity.Hub(str(folder))
        self.model, self.experiment = self.hub.experiment.model, self.hub.experiment.config.experiment
        self.vocab_size = getattr(self.model, "vocab_size", 0)
        self.shapes = {path: x.shape for path, x in parity.flat(self.hub.abstract).items()}
        self.there = np.arange(LENGTH) < np.array(LENGTHS)[:, None]
        pad = theirs.config.pad_token_id if self.vocab_size else 0
        self.tokens = np.where(self.there, rng.integers(5, 263, self.there.shape), pad)
        several = getattr(theirs.config, "type_vocab_size", 1) > 1
        self.types = (self.there & (np.arange(LENGTH) > 4) & several).astype(int)
        self.images = rng.integers(0, 256, (3, 6, 6, 3)).astype(np.uint8)
        self.apply = jax.jit(self._apply)

    def _apply(self, params):
        variables = {"params": params}
        if self.experiment == "vision":
            return (self.model.apply(variables, self.images),)
        inputs = {"segments_bt": self.there.astype(np.int32), "types_bt": self.types.astype(np.int32)}
        if self.experiment == "classification":
            segments = inputs.pop("segments_bt")
            return (self.model.apply(variables, self.tokens, segments, 1, **inputs)[:, 0],)
        if self.experiment == "span_extraction":
            return (self.model.apply(variables, self.tokens, **inputs),)
        places = np.broadcast_to(np.arange(LENGTH), self.there.shape)
        logits, follows = self.model.apply(variables, self.tokens, places, **inputs)
        # Their first class is that the second text follows, ours the second.
        return (logits[..., : self.vocab_size], *(() if follows is None else [follows[:, 0, ::-1]]))

    def logits(self, params, tokens_bt=None):
        """All logits at tokens that are there, in one array."""
        return self._flat(self.apply(params))

    def _flat(self, found):
        arrays = [np.asarray(x) for x in found]
        return np.concatenate([(x[self.there] if x.ndim > 2 else x).ravel() for x in arrays])

    def expected(self, theirs):
        """The same of a model of transformers."""
        with torch.no_grad():
            if self.experiment == "vision":
                pixels = torch.tensor(self.images.astype(np.float32)).permute(0, 3, 1, 2) / 255
                return self._flat([theirs((pixels - 0.5) / 0.5).logits.numpy()])
            types = {"token_type_ids": torch.tensor(self.types)} if self.types.any() else {}
            tokens, there = torch.tensor(self.tokens), torch.tensor(self.there.astype(np.int64))
            found = theirs(tokens, attention_mask=there, **types)
        if self.experiment == "span_extraction":
            return self._flat([np.stack([found.start_logits.numpy(), found.end_logits.numpy()], axis=-1)])
        names = ("prediction_logits", "seq_relationship_logits", "logits")
        return self._flat([found[name].numpy() for name in names if name in found])


@pytest.fixture(
    scope="module",
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in CASES],
)
def encoder(request, tmp_path_factory):
    folder, make = tmp_path_factory.mktemp("theirs"), getattr(transformers, request.param)
    theirs = make(make.config_class(**CASES[request.param]))
    parity.save(theirs, folder, 1)
    return Encoder(folder, theirs, np.random.default_rng(2))


@pytest.mark.thorough(but=1)
def test_logits(encoder):
    expected = encoder.expected(encoder.theirs)
    ours = encoder.logits(encoder.params)
    assert parity.close(ours, expected), np.abs(ours - expected).max() / np.abs(expected).max()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(("name", "pools"), BARE_CASES)
def test_a_model_without_a_head_is_the_encoder_of_its_family(name, pools, tmp_path, rng):
    make = getattr(transformers, name)
    theirs = make(make.config_class(**BARE[name]), **({} if pools is None else {"add_pooling_layer": pools}))
    parity.save(theirs, tmp_path, 1)
    encoder = Encoder(tmp_path, theirs, rng)
    parts, params = {path.partition("/")[0] for path in encoder.hub.shapes()}, encoder.params
    text = name != "ViTModel"
    if not text:
        assert parts == {"embedding", "cls", "trunk"}
        params |= {"head": {"classes": {"kernel": np.eye(16)[:, :2], "bias": np.zeros(2)}}}
        pixels = torch.tensor(encoder.images.astype(np.float32)).permute(0, 3, 1, 2) / 255
        expected = theirs((pixels - 0.5) / 0.5).last_hidden_state[:, 0, :2]
        assert parity.close(encoder.apply(params)[0], expected.detach().numpy())
        return
    assert parts == ({"encoder", "pooler"} if pools else {"encoder"})
    inputs = {"segments_bt": encoder.there.astype(np.int32), "types_bt": encoder.types.astype(np.int32)}
    bare = TextEncoder(encoder.model.config, encoder.vocab_size)
    ours = bare.apply({"params": params["encoder"]}, encoder.tokens, **inputs)
    types = {"token_type_ids": torch.tensor(encoder.types)} if encoder.types.any() else {}
    there = torch.tensor(encoder.there.astype(np.int64))
    with torch.no_grad():
        found = theirs(torch.tensor(encoder.tokens), attention_mask=there, **types)
    assert parity.close(np.asarray(ours)[encoder.there], found.last_hidden_state.numpy()[encoder.there])
    if pools:
        dense = params["pooler"]["dense"]
        pooled = np.tanh(np.asarray(ours)[:, 0] @ dense["kernel"] + dense["bias"])
        assert parity.close(pooled, found.pooler_output.numpy())


def test_round_trip(encoder, tmp_path):
    """What is exported is what was imported bit by bit, and back; transformers has its logits again."""
    hub, params = encoder.hub, encoder.params
    family, config = family_for(hub.experiment.config, hub.folder.family.model_type)
    assert family is hub.folder.family
    places = table.places(family.rules(hub.model), encoder.shapes, encoder.vocab_size)
    write_tensors(tmp_path, outputs(places, params, np.dtype(np.float32)), 1 << 40)
    exported, original = open_tensors(tmp_path), hub.folder.tensors
    assert {*exported} == {*original}
    for name, tensor in original.items():
        np.testing.assert_array_equal(exported[name].open(), tensor.open(), name)
    again = load(places, exported, hub.abstract)
    for path, leaf in parity.flat(again).items():
        np.testing.assert_array_equal(leaf, parity.flat(params)[path], path)
    labels = {name: hub.folder.config[name] for name in CLASSES if hub.labels}
    config |= labels | ({"vocab_size": encoder.vocab_size} if encoder.vocab_size else {})
    assert family.model(config) == family.model(hub.folder.config)
    kept = {name: getattr(encoder.theirs.config, name) for name in ("pad_token_id",) if encoder.vocab_size}
    (tmp_path / "config.json").write_text(json.dumps(kept | config))
    with contextlib.redirect_stderr(io.StringIO()):
        back = type(encoder.theirs).from_pretrained(tmp_path).eval()
    np.testing.assert_array_equal(encoder.expected(back), encoder.expected(encoder.theirs))


@pytest.mark.thorough
def test_a_wrong_entry_of_the_table_is_caught(encoder):
    right = encoder.logits(encoder.params_by(encoder.rules))
    assert np.array_equal(right, encoder.logits(encoder.params))
    caught, exchanged = 0, set()
    for name, rules in parity.broken_tables(encoder.rules, encoder.shapes):
        first, _, other = name.partition(" for ")
        if other and (first in exchanged or first == other):
            continue  # one exchange of each entry is enough
        if re.search(r"\bk(ey|_lin|)\.bias: ", name) and "model.layers" not in name:
            continue  # without rotary positions it adds the same to all scores of a query
        exchanged |= {first} if other else set()
        try:
            wrong = encoder.logits(encoder.params_by(rules))
        except parity.UserError:
            wrong = None
        assert wrong is None or not parity.close(wrong, right), name
        caught += 1
    assert caught >= 1.7 * len(encoder.rules), (caught, len(encoder.rules))


def test_copies(encoder, tmp_path):
    parity.check_copies(encoder, tmp_path)


def test_old_names_of_tensors_and_duplicates_are_read(encoder, tmp_path):
    """BERT's files from the time of its paper: gamma and beta, numbers of positions, the output once more."""
    if encoder.hub.folder.family is not bert.BERT_PRETRAINING:
        pytest.skip("one model is enough")
    from safetensors.numpy import load_file, save_file

    tensors = load_file(encoder.hub.folder.path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in tensors.items()
    }
    old["bert.embeddings.position_ids"] = np.arange(20)[None]
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    save_file(old, tmp_path / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text((encoder.hub.folder.path / name).read_text())
    hub = parity.Hub(str(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, hub.read(hub.abstract), encoder.params)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (bert.BERT, {"hidden_act": "quick_gelu"}, "hidden_act: 'quick_gelu'; expected one of 'gelu'"),
        (bert.BERT, {"position_embedding_type": "relative"}, "position_embedding_type: 'relative'; only"),
        (bert.BERT, {"is_decoder": True}, "is_decoder: True; only False"),
        (bert.BERT, {"max_position_embeddings": "512"}, "max_position_embeddings: '512'; expected a whole"),
        (roberta.ROBERTA, {"max_position_embeddings": 2}, "max_position_embeddings: 2; expected a whole"),
        (roberta.ROBERTA, {"pad_token_id": -1}, "pad_token_id: -1; expected a whole number of at least 0"),
        (bert.BERT, {"embedding_size": 128}, "embedding_size: 128 has no meaning here for 'bert'"),
        (modernbert.MODERNBERT, {"layer_types": ["full_attention"]}, "layer_types: expected 22 of full"),
        (modernbert.MODERNBERT, {"norm_bias": True}, "norm_bias, mlp_bias, attention_bias: .True"),
        (modernbert.MODERNBERT, {"decoder_bias": False}, "decoder_bias: False; only True"),
        (
            modernbert.MODERNBERT,
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}},
            "rope_parameters: full_attention: .*; only the default rope_type",
        ),
        (modernbert.MODERNBERT, {"global_rope_theta": 0}, "global_rope_theta: 0; expected a number above 0"),
        (
            modernbert.MODERNBERT,
            {"rope_parameters": {"sliding_attention": {"rope_theta": "x"}}},
            "rope_theta: 'x'; expected a number above 0",
        ),
        (vit.VIT, {"patch_size": [16, 8]}, r"patch_size: \[16, 8\]; only squares"),
        (vit.VIT, {"qkv_bias": False}, "qkv_bias: False; only True"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(family, changes, message):
    with pytest.raises(parity.UserError, match="^" + message):
        family.model(changes)


def test_images_of_other_kinds_are_refused():
    assert vit.pixels({}) == {"pixel_mean": 127.5, "pixel_scale": 127.5}
    assert vit.pixels({"do_normalize": False}) == {"pixel_mean": 0.0, "pixel_scale": pytest.approx(255)}
    with pytest.raises(parity.UserError, match=r"image_mean: \[0.4, 0.5, 0.5\]; expected one"):
        vit.pixels({"image_mean": [0.4, 0.5, 0.5]})
    with pytest.raises(parity.UserError, match="num_channels: 4; expected 1 or 3"):
        vit.data({"num_channels": 4})


def test_models_of_ours_that_a_family_cannot_express():
    config = modernbert.MODERNBERT.model({})
    model = from_values(HeadConfig, config)
    kinds = {name: dict(keys) for name, keys in model.layer_kinds.items()}
    for family, changes, message in (
        (bert.BERT, {}, "model.norm_placement"),
        (modernbert.MODERNBERT, {"layers": ("local", "full")}, "model.attention_norm: expected false in"),
        (
            modernbert.MODERNBERT,
            {"layer_kinds": kinds | {"full": {"position_base": 5.0}}},
            "model.layer_kinds: expected one pattern_size, and one position_base",
        ),
        (
            modernbert.MODERNBERT,
            {"layer_kinds": kinds | {"full": kinds["full"] | {"qk_norm": True}}},
            "model.layer_kinds.full.qk_norm: all layers",
        ),
    ):
        if "layers" in changes:
            changes["layer_kinds"] = {name: kinds[name] for name in changes["layers"]}
        with pytest.raises(parity.UserError, match=message):
            family.config(dataclasses.replace(model, **changes))


def test_a_bert_has_one_activation():
    config = from_values(HeadConfig, bert.BERT.model({"hidden_act": "relu"}))
    assert bert.BERT.config(config)["hidden_act"] == "relu"
    said = "model.head_activation: 'gelu' with model.feed_forward: 'relu'; such models have one hidden_act"
    with pytest.raises(parity.UserError, match=f"^{said}$"):
        bert.BERT.config(dataclasses.replace(config, head_activation="gelu"))


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_modernbert_with_layers_of_one_type(kind):
    theirs = {"num_hidden_layers": 2, "layer_types": [kind] * 2}
    theirs |= {"global_rope_theta": 9.0, "local_rope_theta": 8.0}
    ours = modernbert.MODERNBERT.model(theirs)
    written = modernbert.MODERNBERT.config(from_values(HeadConfig, ours))
    assert [*written["rope_parameters"]] == [kind] and modernbert.MODERNBERT.model(written) == ours


def test_modernbert_is_written_for_older_versions_of_transformers_too():
    theirs = {"num_hidden_layers": 5, "global_attn_every_n_layers": 2, "local_attention": 8}
    theirs |= {"global_rope_theta": 9.0, "local_rope_theta": 8.0}
    ours = modernbert.MODERNBERT.model(theirs)
    written = modernbert.MODERNBERT.config(from_values(HeadConfig, ours))
    assert theirs.items() <= written.items()
    older = {key: value for key, value in written.items() if key not in ("layer_types", "rope_parameters")}
    assert modernbert.MODERNBERT.model(older) == ours


def test_every_head_is_tested():
    names = ("bert", "distilbert", "roberta", "xlm-roberta", "mpnet", "modernbert", "vit")
    ours = {family.architecture for name in names for family in FAMILIES[name] if not family.heads}
    assert ours == {*CASES, "BertForMaskedLM"}  # which test_encoder_runs.py imports
