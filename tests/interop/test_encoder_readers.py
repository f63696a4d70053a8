"""Encoders that are exported, read by programs that people embed texts with: llama.cpp and CTranslate2."""

import contextlib
import io

import numpy as np
import pytest

import launch
from tests import runs
from tests.interop import parity
from tests.interop.test_encoder_runs import words
from tests.interop.test_sentence_encoders import imported, sentence_model
from workdir import embed, load

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")
xllamacpp = pytest.importorskip("xllamacpp")
ctranslate2 = pytest.importorskip("ctranslate2")

pytestmark = pytest.mark.usefixtures("in_root")

TEXTS = ["The FILM was good, number zing.", "bad", " a film\tof the end ", "Café 日本\tgood", "the ø film"]
APPROXIMATE = 1e-3
"""llama.cpp's BERT approximates GELU, and looks it up in a table of half precision."""
EXACT = 1e-6


def vectors(file, texts):
    """(vectors, numbers of tokens) of texts by llama.cpp."""
    wanted = xllamacpp.CommonParams()
    wanted.model.path, wanted.embedding = str(file), True
    wanted.n_ctx, wanted.n_gpu_layers, wanted.n_parallel = 256, 0, 1
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1
    wanted.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(wanted)
    answers = [server.handle_embeddings({"input": text}) for text in texts]
    return (
        np.array([answer["data"][0]["embedding"] for answer in answers]),
        [answer["usage"]["prompt_tokens"] for answer in answers],
    )


def exported(folder):
    assert (
        launch.main(
            ["--mode=export", f"--workdir={folder / 'run'}", f"--to={folder / 'gguf'}", "--format=gguf"]
        )
        == 0
    )
    return folder / "gguf" / "model.gguf"


CASES = [
    ("BertModel", "mean", APPROXIMATE),
    ("BertModel", "cls", APPROXIMATE),
    ("ModernBertModel", "mean", EXACT),
    ("ModernBertModel", "lasttoken", EXACT),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "pooling", "precision"), CASES)
def test_llama_cpp_has_the_same_vectors(kind, pooling, precision, tmp_path):
    """Of texts that it cuts into tokens itself."""
    run, params = imported(sentence_model(tmp_path, kind, pooling, True), tmp_path / "run")
    ours = embed(run, params, TEXTS)
    theirs, counts = vectors(exported(tmp_path), TEXTS)
    tokenizer = run.experiment.data.tokenizer
    assert counts == [len(tokenizer.encode(text)) + 2 for text in TEXTS]
    assert np.abs(ours - ours.mean(0)).max() > 0.1
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=precision)


@pytest.mark.thorough
def test_an_encoder_that_is_pre_trained_here_has_the_same_vectors_there(tmp_path):
    """With a tokenizer of bytes, after whose vocabulary the special tokens are; its heads are left out."""
    source, folder = runs.write_corpus(tmp_path / "corpus"), tmp_path / "run"
    keys = [
        f"--config.data.source={source}",
        "--config.data.tokenizer=bpe",
        "--config.data.next_sentence=false",
    ]
    keys += ["--config.data.vocab_size=270"]
    assert launch.main(["--config=configs/papers/bert_tiny.py:tiny", f"--workdir={folder}", *keys]) == 0
    run, params = load(folder)
    texts = ["def f(x):", "the cat's  12 hats", "naïve"]
    theirs, counts = vectors(exported(tmp_path), texts)
    assert counts == [len(run.experiment.data.tokenizer.encode(text)) + 2 for text in texts]
    states = [states_of(run, params, text).mean(0) for text in texts]
    ours = np.array([state / np.linalg.norm(state) for state in states])
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=APPROXIMATE)


def states_of(run, params, text):
    """The last layer's states of `[CLS] text [SEP]`, (t, d)."""
    tokens_bt = run.experiment.masked_tokens(text)[None]
    ones = np.ones_like(tokens_bt)
    return np.asarray(
        run.experiment.model.apply(
            {"params": params}, tokens_bt, segments_bt=ones, types_bt=0 * ones, method="encode"
        )[0]
    )


@pytest.mark.thorough
def test_ctranslate2_has_the_same_states(tmp_path):
    """Of an exported BERT; GELU is exact there."""
    run, params = imported(sentence_model(tmp_path, "BertModel", "mean", False), tmp_path / "run")
    folder, converted = tmp_path / "out", tmp_path / "ctranslate2"
    assert launch.main(["--mode=export", f"--workdir={tmp_path / 'run'}", f"--to={folder}"]) == 0
    with contextlib.redirect_stderr(io.StringIO()):
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = ctranslate2.Encoder(str(converted), intra_threads=1)
    ours = embed(run, params, TEXTS)
    for text, vector in zip(TEXTS, ours, strict=True):
        ids = tokenizer(text)["input_ids"]
        states = np.array(encoder.forward_batch([ids]).last_hidden_state)[0]
        np.testing.assert_allclose(states.mean(0), vector, rtol=0, atol=1e-5 * np.abs(ours).max())


def refused(tmp_path, capfd, make, **keys):
    """The error of importing a model of transformers and exporting it as GGUF."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    model = make(make.config_class(**{**SMALL, **words(folder), **keys}))
    parity.save(model, folder, 3)
    (folder / "tokenizer.json").unlink()
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={tmp_path / 'run'}"]) == 0
    capfd.readouterr()
    command = ["--mode=export", f"--workdir={tmp_path / 'run'}", f"--to={tmp_path / 'out'}", "--format=gguf"]
    assert launch.main(command) == 2
    assert not (tmp_path / "out").exists()
    return capfd.readouterr().err


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}


def test_a_head_is_refused(tmp_path, capfd):
    said = refused(tmp_path, capfd, transformers.BertForSequenceClassification)
    assert (
        "--format=gguf: experiment: 'classification' has a head, which is not written; expected masked_lm or"
        in said
    )


def test_another_activation_is_refused(tmp_path, capfd):
    said = refused(tmp_path, capfd, transformers.BertForMaskedLM, hidden_act="relu")
    assert "--format=gguf: hidden_act: 'relu'; expected 'gelu' or 'gelu_new'" in said


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"norm_bias": True, "mlp_bias": True}, "norm_bias: True; expected False"),
        (
            {"global_attn_every_n_layers": 2},
            "layer_types: full_attention, sliding_attention, full_attention;",
        ),
    ],
)
def test_another_modernbert_is_refused(keys, message, tmp_path, capfd):
    keys |= {"num_hidden_layers": 3, "pad_token_id": 0}
    said = refused(tmp_path, capfd, transformers.ModernBertForMaskedLM, **keys)
    assert f"--format=gguf: {message}" in said


def test_a_tokenizer_with_case_is_refused(tmp_path, capfd):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, **words(folder)))
    parity.save(model, folder, 3)
    (folder / "tokenizer.json").unlink()
    assert launch.main(["--mode=import", f"--from={folder}", f"--workdir={tmp_path / 'run'}"]) == 0
    command = ["--mode=export", f"--workdir={tmp_path / 'run'}", f"--to={tmp_path / 'out'}", "--format=gguf"]
    assert launch.main(command) == 2
    assert "the words of an uncased BERT" in capfd.readouterr().err
