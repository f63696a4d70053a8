"""Vectors of any run: by --mode=embed and by `workdir.embed`."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import linen as nn

import launch
from experiments.evaluation.text_vectors import AT_ONCE, Embedder
from tests import runs
from transformer.errors import UserError
from transformer.layers.block import Block
from workdir import embed, load

pytestmark = pytest.mark.usefixtures("in_root")

TEXTS = [f"def f{i}(" + "x, " * i + "y): return y" for i in range(12)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Experiment -> the folder of a run of it, made on first use."""
    root, made = tmp_path_factory.mktemp("runs"), {}
    source = runs.write_corpus(tmp_path_factory.mktemp("corpus"))
    pairs = root / "pairs.tsv"
    pairs.write_text("\n".join(["target\tsource", *(f"line {i}\tdef f{i}(x)" for i in range(80))]) + "\n")
    configs = {
        "lm": ["--config=configs/lm.py:tiny", f"--config.data.source={source}"],
        "scanned": ["--config=configs/lm.py:tiny", "--config.model.scan_layers=true"],
        "bert": ["--config=configs/bert.py:tiny", f"--config.data.source={source}"],
        "search": ["--config=configs/studies/search/functions.py:tiny", f"--config.data.source=tsv:{pairs}"],
        "vision": ["--config=configs/vision.py:tiny", "--config.model.pooling=cls"],
        "words": ["--config=configs/word_embedding.py:tiny", f"--config.data.source={source}"],
    }
    configs["search"] += ["--config.model.width=8"]
    configs["scanned"] += [f"--config.data.source={source}", "--config.model.num_layers=3"]

    def folder(name):
        if name not in made:
            made[name] = root / name
            assert launch.main([*configs[name], "--config.train.steps=1", f"--workdir={root / name}"]) == 0
        return str(made[name])

    return folder


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", ["search", "lm", "bert"])
def test_vectors_do_not_depend_on_the_other_texts(name, folders):
    """Nor on their number, their order or their lengths."""
    run, params = load(folders(name))
    texts = TEXTS * (1 + AT_ONCE // len(TEXTS))
    together = embed(run, params, texts)
    assert np.abs(np.linalg.norm(together, axis=1) - 1).max() < 1e-5
    assert np.abs(together[0] - together[5]).max() > 1e-3
    for i in (0, 5, 11):
        np.testing.assert_allclose(embed(run, params, [TEXTS[i]])[0], together[i], atol=2e-6)
    np.testing.assert_allclose(embed(run, params, texts[::-1])[::-1], together, atol=2e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["lm", "scanned", "bert"])
def test_a_layer_is_the_output_of_so_many_blocks(name, folders):
    """Against the input and the output of each block of the unrolled model, without padding."""
    run, params = load(folders(name))
    experiment = run.experiment
    few = dataclasses.replace(experiment.config.model, scan_layers=False)
    method = "encode" if name == "bert" else "hidden"
    tokens = Embedder(experiment)._tokens(TEXTS[3])

    def states_of(params):
        states = []

        def noting(function, args, kwargs, context):
            result = function(*args, **kwargs)
            if isinstance(context.module, Block) and context.method_name == "__call__":
                states.extend([*([] if states else [args[0]]), result[0]])
            return result

        with nn.intercept_methods(noting):
            experiment.model.clone(config=few).apply({"params": params}, tokens[None], method=method)
        return states

    states = jax.jit(states_of)(params)
    assert len(states) == few.num_layers + 1
    for layer, (x_td,) in enumerate(map(np.asarray, states)):
        for pooling, expected in (("mean", x_td.mean(0)), ("first", x_td[0]), ("last", x_td[-1])):
            (ours,) = embed(run, params, [TEXTS[3]], layer=layer, pooling=pooling, normalize=False)
            np.testing.assert_allclose(ours, expected, atol=1e-5 * np.abs(x_td).max())


def lines_of(capfd):
    return [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]


def test_files_are_written(folders, tmp_path, capfd):
    folder = folders("search")
    run, params = load(folder)
    expected = embed(run, params, TEXTS)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    records = [json.dumps({"id": i, "body": text}) for i, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("\n".join(records) + "\n")
    command = [f"--workdir={folder}", "--mode=embed"]
    capfd.readouterr()
    assert launch.main([*command, f"--input={tmp_path / 'texts.txt'}"]) == 0
    lines = lines_of(capfd)
    assert [line["text"] for line in lines] == TEXTS
    np.testing.assert_allclose([line["vector"] for line in lines], expected, atol=1e-6)
    out = tmp_path / "out.npy"
    given = [f"--input={tmp_path / 'texts.jsonl'}", "--field=body", f"--output={out}"]
    assert launch.main([*command, *given]) == 0
    stored = np.load(out)
    assert stored.dtype == np.float32 and [*tmp_path.glob("*.part*")] == []
    np.testing.assert_allclose(stored, expected, atol=1e-6)
    assert launch.main([*command, f"--prompt={TEXTS[2]}", "--normalize=false"]) == 0
    (line,) = lines_of(capfd)
    vector = np.array(line["vector"])
    np.testing.assert_allclose(vector / np.linalg.norm(vector), expected[2], atol=1e-6)
    assert abs(np.linalg.norm(vector) - 1) > 1e-3


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("search", ["--pooling=middle"], "pooling: 'middle'; expected one of mean, first, last, max"),
        ("search", ["--layer=1"], "layer: 1; the map to 8 dimensions is of the last layer alone"),
        ("search", ["--images"], "a run of contrastive has no vectors of images"),
        ("lm", ["--layer=9"], "layer: 9; expected a number from 0 to 1, its last"),
        ("words", [], "a run of word_embedding has no vectors of texts"),
    ],
)
def test_a_mistake_is_one_line(name, options, message, folders, tmp_path, capfd):
    out = tmp_path / "out.npy"
    command = [f"--workdir={folders(name)}", "--mode=embed", "--prompt=a", f"--output={out}"]
    capfd.readouterr()
    assert launch.main([*command, *options]) == 2
    assert capfd.readouterr().err == f"error: --mode=embed: {message}\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.thorough
def test_images_of_a_classifier_are_embedded(folders):
    """As what its head reads."""
    folder = folders("vision")
    run, params = load(folder)
    (file,) = [str(path) for path in (run.folder.samples).glob("*.png")]
    (vector,) = embed(run, params, [file], normalize=False)
    image = run.experiment.data.read(file)
    logits = jax.jit(run.experiment.model.apply)({"params": params}, image[None])
    head = params["head"]["classes"]
    np.testing.assert_allclose(vector @ head["kernel"] + head["bias"], logits[0], atol=1e-5)
    first, mean = (embed(run, params, [file], pooling=each)[0] for each in ("first", "mean"))
    np.testing.assert_allclose(first, vector / np.linalg.norm(vector), atol=1e-6)
    assert np.abs(first - mean).max() > 1e-2


def test_one_text_in_place_of_several(folders):
    with pytest.raises(UserError, match="expected a list of texts"):
        embed(*load(folders("search")), "a text")
