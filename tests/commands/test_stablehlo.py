"""Models exported as StableHLO: run without this library, with the same tokens and logits."""

import argparse
import json
import runpy
import subprocess
import sys

import jax
import jax.export
import numpy as np
import pytest
from flax.core import meta

import launch
from commands.exporters import stablehlo
from tests import runs
from transformer.decoding.exported import export
from transformer.errors import UserError
from transformer.layers import dot
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

PROMPT, ROOM = "alpha beta (", 9

ALONE = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
ours = {"transformer", "experiments", "workdir", "commands", "configs", "flax"}
assert not ours & {name.split(".")[0] for name in sys.modules}, "it needs this library"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, in_root):
    """A language model with large weights, whose answers are not one token alone."""
    folder = tmp_path_factory.mktemp("stablehlo")
    source = runs.write_corpus(folder / "text")
    runs.train(source, folder / "run", "--config.initialize_std=0.5")
    return folder / "run"


@pytest.mark.thorough
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_another_process_continues_a_prompt_with_jax_alone(trained, tmp_path, weights):
    flags = ["--format=stablehlo", "--length=20", f"--room={ROOM}", "--batch=2"]
    flags.append(f"--config.sample.weights={weights}")
    assert launch.main(["--mode=export", f"--workdir={trained}", f"--to={tmp_path / 'model'}", *flags]) == 0
    keys = [("sample.temperature", "0"), ("sample.max_new_tokens", str(ROOM)), ("sample.weights", weights)]
    run, params = opening.load(trained, keys)
    experiment = run.experiment
    tokens = [experiment.data.tokenizer.bos_id, *experiment.data.tokenizer.encode(PROMPT)]
    program = str(tmp_path / "model" / "run.py")
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, program, *map(str, tokens)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    new = [int(each) for each in done.stdout.split()]
    with run.placed():
        (expected,) = next(experiment.predict(params, [PROMPT]))
    assert len(set(new)) > 1 and experiment.data.tokenizer.decode(new) == expected
    shape = json.loads((tmp_path / "model" / "signature.json").read_text())
    assert (shape["batch"], shape["length"], shape["room"]) == (2, 20, ROOM)
    assert shape["platforms"] == [jax.default_backend()]


@pytest.mark.thorough
def test_the_program_beside_them_ends_where_the_text_does(trained, tmp_path, monkeypatch, capsys):
    flags = ["--format=stablehlo", "--length=8", f"--room={ROOM}", f"--to={tmp_path / 'model'}"]
    assert launch.main(["--mode=export", f"--workdir={trained}", *flags]) == 0
    shape = json.loads((tmp_path / "model" / "signature.json").read_text())
    assert shape["eos_id"] == opening.reopen_run(trained).experiment.data.tokenizer.eos_id

    def new(eos_id):
        (tmp_path / "model" / "signature.json").write_text(json.dumps(shape | {"eos_id": eos_id}))
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["run.py", "4", "17"])
        runpy.run_path(str(tmp_path / "model" / "run.py"))
        return [int(each) for each in capsys.readouterr().out.split()]

    whole = new(-1)
    last = next(at for at in range(1, ROOM) if whole[at] not in whole[:at])
    assert len(whole) == ROOM and new(whole[last]) == whole[:last]


@pytest.mark.thorough
def test_a_model_that_does_not_generate(tmp_path):
    run = opening.open_without_data(opening.read_config("configs/vision.py:tiny"), [])
    with pytest.raises(UserError, match="--format=stablehlo: a model of vision does not generate"):
        stablehlo.write(run, "latest", tmp_path / "model", argparse.Namespace(length=4, room=4))
    assert not any(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "keys", "size"),
    [
        ("lm", [("data.tokenizer", "bytes"), ("model.vocab_size", "300")], 300),
        ("lm", [("data.tokenizer", "bytes"), ("model.vocab_multiple", "100")], 257),
        ("translation", [("data.tokenizer", "bytes"), ("model.vocab_size", "300")], 300),
        ("rnn_translation", [("data.tokenizer", "bytes"), ("model.vocab_multiple", "100")], 257),
    ],
)
def test_the_size_of_the_vocabulary_is_that_of_the_logits(config, keys, size, tmp_path, monkeypatch):
    """Which have no padding, and may have more tokens than the tokenizer."""
    run = opening.open_without_data(opening.read_config(f"configs/{config}.py:tiny"), keys)
    params = meta.unbox(run.init(jax.random.key(0)))
    monkeypatch.setattr(run, "restore_params", lambda step: params)
    flags = argparse.Namespace(batch=2, length=4, room=4, platforms="")
    stablehlo.write(run, "latest", tmp_path / "model", flags)
    for name in ("prefill", "step"):
        program = jax.export.deserialize(bytearray((tmp_path / f"model/{name}.stablehlo").read_bytes()))
        assert program.out_avals[0].shape == (2, size)
    assert json.loads((tmp_path / "model" / "signature.json").read_text())["vocab_size"] == size


@pytest.mark.thorough
def test_a_model_without_a_longest_sequence(tmp_path):
    run, model = f"--workdir={tmp_path / 'run'}", tmp_path / "model"
    assert launch.main(["--config=configs/rnn_translation.py:tiny", run]) == 0
    assert launch.main(["--mode=export", run, f"--to={model}", "--format=stablehlo", "--length=4000"]) == 0
    assert json.loads((model / "signature.json").read_text())["length"] == 4000


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "dtype"),
    [("transformer_xl", "float32"), ("rnn_translation", "float32"), ("translation", "bfloat16")],
)
def test_programs_are_the_stepper_with_ragged_prompts(config, dtype, rng, monkeypatch):
    # As on a machine with one CPU device: by its manual layouts.
    monkeypatch.setattr(dot, "is_single_cpu", lambda: True)
    keys = [("model.dtype", dtype)]
    run = opening.open_without_data(opening.read_config(f"configs/{config}.py:tiny"), keys)
    experiment = run.experiment
    params = jax.tree.map(
        lambda x: x + 0.1 * rng.normal(size=x.shape), meta.unbox(run.init(jax.random.key(0)))
    )
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), params)
    stepper = experiment.stepper(params)
    tokens_bt = rng.integers(1, 20, size=(3, 6)).astype(np.int32)
    lengths_b = np.array([6, 1, 4], np.int32)
    programs = export(stepper, batch=3, length=6, room=4)
    weights = [*programs.weights.values()]
    prefill, step = (jax.export.deserialize(bytearray(each)) for each in (programs.prefill, programs.step))
    logits_bv, cache = prefill.call(weights, tokens_bt, lengths_b)
    expected_bv, theirs = jax.jit(stepper.prefill, static_argnums=2)(tokens_bt, lengths_b, 4)
    for _ in range(4):
        np.testing.assert_allclose(logits_bv, expected_bv, rtol=1e-5, atol=1e-5)
        token_b = rng.integers(1, 20, size=3).astype(np.int32)
        logits_bv, cache = step.call(weights, token_b, cache)
        expected_bv, theirs = jax.jit(stepper.step)(token_b, theirs)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--length=0"], "--length: 0; expected at least 1"),
        (["--platforms=cpu,abacus"], "--platforms: 'abacus'; expected some of cpu, cuda"),
        (["--length=4000"], "--length, --room: 4064 tokens; the model reads "),
        (["--format=onnx"], "--format"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(trained, tmp_path, flags, said, capsys):
    there = f"--to={tmp_path / 'model'}"
    assert launch.main(["--mode=export", f"--workdir={trained}", there, "--format=stablehlo", *flags]) == 2
    assert said in capsys.readouterr().err and not any(tmp_path.iterdir())
