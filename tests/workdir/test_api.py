"""The public Python API, `from workdir import ...`."""

import json
import re

import jax
import numpy as np
import pytest

import workdir
from tests import runs
from tests.training.toy import assert_same
from transformer.errors import UserError
from transformer.layers.mixers import MIXERS, MultiHeadAttention
from transformer.training.loop import training_steps
from workdir import api, complete, evaluate, load, logits, metrics

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    source = runs.write_corpus(folder / "corpus")
    assert runs.train(source, folder / "run", "--config.train.steps=2") == "finished"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "settle", lambda: None)  # for the whole process, which is a test's here
        return load(folder / "run")


def test_each_public_name_is_of_the_api():
    public = {name for name, x in vars(api).items() if getattr(x, "__module__", "") == api.__name__}
    assert {*workdir.API} == {name for name in public if not name.startswith("_")}
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = workdir.lode


@pytest.mark.thorough
def test_logits_are_of_the_tokens_of_the_tokenizer(trained):
    run, params = trained
    names, logits_tv = logits(run, params, "alpha b")
    tokenizer = run.experiment.data.tokenizer
    assert names[0] == "start" and len(names) == len(logits_tv) == 1 + len(tokenizer.encode("alpha b"))
    assert (
        logits_tv.shape[1]
        == tokenizer.vocab_size
        < run.experiment.model.apply({"params": params}, np.zeros((1, 1), int)).shape[-1]
    )
    (score,) = run.experiment.score(params, [("alpha ", "b")])
    log_p_v = jax.nn.log_softmax(logits_tv[-2])
    np.testing.assert_allclose(log_p_v[tokenizer.encode("b")[0]], score.log_likelihood, rtol=1e-5)
    with pytest.raises(UserError, match="tokens; the model reads"):
        logits(run, params, "alpha " * 1000)


@pytest.mark.thorough
def test_a_completion_has_keys_of_its_own(trained):
    run, params = trained
    greedy = complete(run, params, "alpha", temperature=0.0, max_new_tokens=3)
    assert greedy == complete(run, params, "alpha", seed=1, temperature=0.0, max_new_tokens=3)
    assert len(greedy.encode()) <= 9 and run.config.sample.num_samples == 1
    drawn = {complete(run, params, "alpha", seed, temperature=2.0, max_new_tokens=8) for seed in range(4)}
    assert len(drawn) > 1
    with pytest.raises(UserError, match=r"sample\.temprature: unknown key; did you mean 'temperature'"):
        complete(run, params, "alpha", temprature=1.0)
    for call in (complete, logits):
        with pytest.raises(UserError, match=f"^{call.__name__}: list; expected one text, call it for each"):
            call(run, params, ["alpha", "beta"])


def test_a_member_that_a_cell_replaces_is_the_one_that_is_used(trained, monkeypatch):
    """Also where a program with the one before, of the same name, is compiled."""
    run, params = trained
    keys = {"temperature": 0.0, "max_new_tokens": 5}
    before = complete(run, params, "alpha", **keys)
    called = []

    class Changed(MultiHeadAttention):
        def join(self, out_bthk, width):
            called.append(width)
            return super().join(out_bthk, width)

    monkeypatch.setitem(MIXERS, "multi_head", Changed)
    assert complete(run, params, "alpha", **keys) == before and called
    called.clear()
    assert complete(run, params, "alpha", **keys) == before and not called  # compiled once


def test_an_evaluation_is_that_of_training(trained):
    run, params = trained
    (logged,) = metrics(run.folder.path)["eval/loss"][1]
    assert evaluate(run, params)["eval/loss"] == pytest.approx(logged, rel=1e-5)
    assert {"eval/loss", "eval/perplexity"} <= evaluate(run, params, "test").keys()


def test_the_loop_of_the_page_has_the_losses_and_the_state_of_training(trained):
    run, _ = trained
    page = (runs.ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    (snippet,) = (
        each for each in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "for info" in each
    )
    found = {"run": run}
    exec(snippet, found)
    lines = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [2]
    assert np.mean(found["losses"]) == pytest.approx(lines[0]["train/loss"], rel=1e-6)
    with run.checkpoints(write=False) as checkpoints:
        saved = jax.device_get(checkpoints.restore(run.abstract))
    assert_same(jax.device_get(found["info"].state), saved)
    assert_same(jax.device_get(found["params"]), saved.params)


def test_the_loop_continues_from_the_latest_checkpoint_and_writes_nothing(trained):
    run, _ = trained
    before = runs.listing(run.folder.path)
    assert list(training_steps(run)) == []  # it is at its end
    first, second = training_steps(run, run.first_state())
    assert (first.step, second.step) == (1, 2) and min(first.waited, second.waited) > 0
    assert runs.listing(run.folder.path) == before
