"""Encoders without a head, in and out: vectors of texts are those of sentence-transformers, of images those
of transformers."""

import contextlib
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import launch
from tests.interop import parity
from tests.interop.test_encoder_runs import SIZES, byte_pairs, mpnet_words, random_model, words
from workdir import embed, load

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentences = pytest.importorskip("sentence_transformers")

pytestmark = pytest.mark.usefixtures("in_root")

TEXTS = [
    "The FILM was good, number zing.",
    "bad",
    " the end of a text, with spaces around it ",
    "a film that is longer than what is read of it " * 3,
    "Café 日本\tgood",
]
KINDS = {
    "BertModel": (words, {}),
    "RobertaModel": (byte_pairs, {"pad_token_id": 1}),
    "XLMRobertaModel": (byte_pairs, {"pad_token_id": 1}),
    "MPNetModel": (mpnet_words, {}),
    "DistilBertModel": (words, {}),
    "ModernBertModel": (words, {"num_hidden_layers": 3, "local_attention": 8, "pad_token_id": 0}),
}
LONGEST = 20


def encoder(folder, name):
    """A model without a head, of random weights, in a folder with its tokenizer."""
    tokenizer, more = KINDS[name]
    parity.save(random_model(getattr(transformers, name), tokenizer(folder) | more), folder, 3)
    (folder / "tokenizer.json").unlink()
    kinds = {words: "BertTokenizer", byte_pairs: "RobertaTokenizer", mpnet_words: "MPNetTokenizer"}
    getattr(transformers, kinds[tokenizer]).from_pretrained(folder).save_pretrained(folder)


def sentence_model(folder, kind="BertModel", pooling="mean", normalized=True, **more):
    """A model of sentence-transformers in a folder."""
    base = folder / "base"
    base.mkdir()
    encoder(base, kind)
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [Transformer(str(base), max_seq_length=LONGEST), Pooling(SIZES["hidden_size"], pooling)]
    modules += [Normalize()] if normalized else []
    with contextlib.redirect_stderr(io.StringIO()):
        sentences.SentenceTransformer(modules=modules, device="cpu", **more).save(str(folder / "model"))
    return folder / "model"


def test_beside_modules_the_encoder_alone_is_read(small, tmp_path):
    """Also where the config names the class that the encoder was trained with, whose head may be there."""
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(small, tmp_path / "model")
    changed(folder, "config.json", lambda values: values | {"architectures": ["BertForMaskedLM"]})
    expected = embed(*imported(folder, tmp_path / "run"), TEXTS)
    tensors = {f"bert.{name}": x for name, x in load_file(folder / "model.safetensors").items()}
    tensors["cls.predictions.bias"] = np.ones(3, np.float32)
    save_file(tensors, folder / "model.safetensors")
    np.testing.assert_array_equal(embed(*imported(folder, tmp_path / "again"), TEXTS), expected)
    np.testing.assert_allclose(theirs(folder), expected, rtol=0, atol=1e-5)


def theirs(folder):
    with contextlib.redirect_stderr(io.StringIO()):
        return sentences.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


def imported(folder, workdir):
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={workdir}"]) == 0
    return load(workdir)


CASES = [
    ("BertModel", "mean", True),
    ("BertModel", "cls", False),
    ("RobertaModel", "max", False),
    ("XLMRobertaModel", "mean", True),
    ("MPNetModel", "mean", True),
    ("DistilBertModel", "mean", False),
    ("ModernBertModel", "lasttoken", True),
]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(("kind", "pooling", "normalized"), CASES)
def test_vectors_are_those_of_sentence_transformers_and_go_back(kind, pooling, normalized, tmp_path, capfd):
    folder = sentence_model(tmp_path, kind, pooling, normalized)
    run, params = imported(folder, tmp_path / "run")
    expected = theirs(folder)
    assert np.abs(expected - expected.mean(0)).max() > 0.1
    ours = embed(run, params, TEXTS)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * scale)
    assert run.config.data.query_length == LONGEST
    assert " texts are longer than the model reads: truncated\n" in capfd.readouterr().err
    out = tmp_path / "out"
    assert launch.main(["--mode=export", f"--workdir={tmp_path / 'run'}", f"--to={out}"]) == 0
    np.testing.assert_allclose(theirs(out), expected, rtol=0, atol=1e-5 * scale)
    again, params = imported(out, tmp_path / "again")
    np.testing.assert_array_equal(embed(again, params, TEXTS), ours)


def test_layers_and_poolings_are_those_of_transformers(tmp_path):
    """Of a folder of transformers, without modules of sentence-transformers: the mean, as there."""
    encoder(tmp_path, "BertModel")
    run, params = imported(tmp_path, tmp_path / "run")
    assert (run.config.model.pooling, run.config.model.normalize) == ("mean", False)
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens, output_hidden_states=True).hidden_states
    for layer in range(3):
        for pooling, vector in (("mean", states[layer][0].mean(0)), ("last", states[layer][0, -1])):
            (ours,) = embed(run, params, TEXTS[:1], pooling=pooling, normalize=False, layer=layer)
            assert parity.close(ours, vector.numpy())


def test_images_are_embedded_by_a_model_without_a_head(tmp_path, rng, capfd):
    keys = SIZES | {"image_size": 6, "patch_size": 2, "num_channels": 3}
    model = transformers.ViTModel(transformers.ViTConfig(**keys))
    parity.save(model, tmp_path, 1)
    pixels = rng.integers(0, 256, (2, 6, 6, 3), np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    files = [str(tmp_path / f"{i}.png") for i in range(2)]
    run, params = imported(tmp_path, tmp_path / "run")
    with torch.no_grad():
        states = model(torch.tensor(pixels.astype(np.float32) / 127.5 - 1).permute(0, 3, 1, 2))
    assert parity.close(embed(run, params, files, normalize=False), states.last_hidden_state[:, 0].numpy())
    capfd.readouterr()
    for mode in ("predict", "evaluate"):
        prompt = [f"--prompt={files[0]}"] if mode == "predict" else []
        assert launch.main([f"--mode={mode}", f"--workdir={tmp_path / 'run'}", *prompt]) == 2
        assert capfd.readouterr().err.count("error: ") == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("from_run", "kind"), [(True, "BertModel"), (False, "BertModel"), (False, "MPNetModel")]
)
def test_an_encoder_without_a_head_starts_other_runs(tmp_path, from_run, kind):
    """A classifier, question answering and an embedder take all of it, from its folder or from its import."""
    folder = sentence_model(tmp_path, kind)
    imported(folder, tmp_path / "run")
    origin = tmp_path / "run" if from_run else f"hf:{folder}"
    table = tmp_path / "a.tsv"
    rows = [f"the film {i}\t{'good' if i % 2 else 'bad'}" for i in range(80)]
    table.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (tmp_path / "pairs.tsv").write_text("\n".join(["a\tb", *rows]) + "\n")
    pairs = {"source": f"tsv:{tmp_path / 'pairs.tsv'}", "query_field": "a", "passage_field": "b"}
    runs = {
        "finetune_classification.py": {"source": f"tsv:{table}", "sequence_length": 20},
        "studies/search/functions.py": pairs | {"overlap": 1, "query_length": 12, "passage_length": 12},
        "finetune_question_answering.py": {"sequence_length": 36, "question_length": 12, "stride": 8},
    }
    for config, data in runs.items():
        new = tmp_path / config.replace("/", "-")
        keys = {"initialize_from": origin} | {f"data.{key}": value for key, value in data.items()}
        given = [f"--config.{key}={value}" for key, value in keys.items()]
        given += ["--config.optimizer.learning_rate=0", "--config.optimizer.adam_learning_rate=0"]
        assert launch.main([f"--config=configs/{config}:tiny", f"--workdir={new}", *given]) == 0, config
        options = {"pooling": "mean", "normalize": True}
        vectors = [embed(*load(path), TEXTS[:2], **options) for path in (new, tmp_path / "run")]
        np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def changed(folder, name, change):
    values = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(change(values)))


DENSE = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
REFUSED = {
    "Transformer, Pooling, Normalize, Dense; expected": ("modules.json", lambda modules: [*modules, DENSE]),
    "expected a list, [...]": ("modules.json", lambda modules: {"modules": modules}),
    "path: '../1_Pooling'; expected": (
        "modules.json",
        lambda modules: [modules[0], modules[1] | {"path": "../1_Pooling"}],
    ),
    "pooling_mode: 'weightedmean'; expected one of mean, cls, max, lasttoken": (
        "1_Pooling/config.json",
        lambda module: module | {"pooling_mode": "weightedmean"},
    ),
    "pooling_mode: ['cls', 'mean']; expected": (
        "1_Pooling/config.json",
        lambda module: {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    ),
    "do_lower_case: true; only false": ("sentence_bert_config.json", lambda _: {"do_lower_case": True}),
    "default_prompt_name: 'query'; only null": (
        "config_sentence_transformers.json",
        lambda values: values | {"default_prompt_name": "query", "prompts": {"query": "search: "}},
    ),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return sentence_model(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("message", REFUSED)
def test_modules_that_mean_nothing_here_are_refused(message, small, tmp_path, capfd):
    folder = shutil.copytree(small, tmp_path / "model")
    changed(folder, *REFUSED[message])
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={tmp_path / 'run'}"]) == 2
    assert message in capfd.readouterr().err and not (tmp_path / "run").exists()


def test_older_forms_are_read(small, tmp_path):
    """The flags of poolings, and max_seq_length of the encoder, of releases before 5."""
    folder = shutil.copytree(small, tmp_path / "model")
    old = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(old))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}))
    run, params = imported(folder, tmp_path / "run")
    assert run.config.data.query_length == 9
    np.testing.assert_allclose(embed(run, params, TEXTS), theirs(folder), rtol=0, atol=1e-5)
