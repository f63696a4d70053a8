"""Members that a program or a notebook adds to a family, which no file names."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import launch
from configs import lm
from experiments import EXPERIMENTS
from tests import runs
from transformer.config import from_values
from transformer.config_help import describe_keys
from transformer.errors import UserError
from transformer.layers.alignment import ALIGNMENTS, DotAlignment
from transformer.layers.attention.kernels import KERNELS, Kernel, reference
from transformer.layers.attention.patterns import PATTERNS, Window
from transformer.layers.attention.positions import POSITIONS, Alibi
from transformer.layers.feed_forward import FEED_FORWARDS
from transformer.layers.mixers import MIXERS, MultiHeadAttention
from transformer.layers.normalization import NORMS, LayerNorm
from transformer.layers.recurrence import CELLS, GRU
from transformer.models.decoder import DecoderConfig
from transformer.models.recurrent import RecurrentConfig
from transformer.run_folder import RunFolder
from transformer.training.losses import LOSSES
from transformer.training.losses.token_losses import LossConfig
from transformer.training.optim.optimizer import SCHEDULES, OptimizerConfig
from transformer.training.run import Run
from workdir import api as notebook
from workdir import opening
from workdir.included import INCLUDED
from workdir.provenance import command

PAGE = (runs.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
(RECIPE,) = re.findall(r"^```python\n((?:(?!```).)*?^MIXERS\[.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


OTHERS = {"kernel": ["auto"], "attention": ["none"]}
"""Valid values that are not members of the family."""


@pytest.mark.parametrize(
    ("config", "key", "family", "member"),
    [
        (DecoderConfig, "kernel", KERNELS, Kernel(reference)),
        (DecoderConfig, "mixer", MIXERS, MultiHeadAttention),
        (DecoderConfig, "pattern", PATTERNS, Window),
        (DecoderConfig, "position", POSITIONS, Alibi),
        (DecoderConfig, "norm", NORMS, LayerNorm),
        (DecoderConfig, "feed_forward", FEED_FORWARDS, FEED_FORWARDS["relu"]),
        (RecurrentConfig, "attention", ALIGNMENTS, DotAlignment),
        (RecurrentConfig, "cell", CELLS, GRU),
        (LossConfig, "name", LOSSES, LOSSES["focal"]),
        (OptimizerConfig, "schedule", SCHEDULES, SCHEDULES["cosine"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_member_is_valid_from_when_it_is_added_until_it_is_removed(
    monkeypatch, config, key, family, member
):
    def refused(value: str) -> str:
        """What is valid, by the error for a value and by the description of the key."""
        with pytest.raises(UserError, match=f"^config.{key}: {value!r}; expected one of ") as error:
            from_values(config, {key: value})
        (described,) = (each.bound for each in describe_keys(config) if each.name == key)
        assert str(error.value).endswith(described)
        return described

    valid = ", ".join(map(repr, [*OTHERS.get(key, []), *family]))
    assert refused("mine") == f"one of {valid}"
    monkeypatch.setitem(family, "mine", member)
    made = from_values(config, {key: "mine"})
    assert getattr(made, key) == "mine"
    if config is DecoderConfig:
        made.stack(causal=True)
    assert refused("mien") == f"one of {valid}, 'mine'"
    monkeypatch.undo()
    assert refused("mine") == f"one of {valid}"


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The smallest run of the language model, in this process."""
    monkeypatch.setattr(notebook, "settle", lambda: None)  # for the whole process, which is a test's here
    monkeypatch.setattr(opening, "Run", functools.partial(Run, devices=jax.devices()[:1]))
    config = lm.get_config("tiny")
    config.data.source, config.train.log_every = runs.write_corpus(tmp_path / "corpus"), 1
    return config


class Narrow(MultiHeadAttention):
    """Attention that forgets to project its outputs to the width of the model."""

    def join(self, out_bthk, width):
        return out_bthk.mean((2, 3))[..., None]


class First(nn.Module):
    """A norm that keeps the first token alone, or a feed-forward."""

    epsilon: float = 0.0

    def __call__(self, x_btd, **_):
        return x_btd[:, :1, :3]


@pytest.mark.parametrize(
    ("family", "member", "key", "said"),
    [
        (MIXERS, Narrow, "mixer", "attention: norm and Narrow return (1, 1, 1)"),
        (NORMS, lambda **_: First(), "norm", "attention: norm and MultiHeadAttention return (1, 1, 3)"),
        (
            FEED_FORWARDS,
            lambda *_, **__: First(),
            "feed_forward",
            "feed_forward: norm and First return (1, 1, 3)",
        ),
    ],
    ids=["mixer", "norm", "feed_forward"],
)
def test_a_member_of_another_width_is_named_and_not_broadcast(monkeypatch, family, member, key, said):
    monkeypatch.setitem(family, "mine", member)
    model = DecoderConfig(d_model=8, num_layers=1, num_heads=2, d_ff=8, **{key: "mine"}).build(5)
    with pytest.raises(UserError, match=re.escape(f"{said} for (1, 1, 8); expected the same shape")):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))


class OfFloat32(nn.Module):
    """A norm, or a feed-forward network, that returns float32 whatever it is given."""

    @nn.compact
    def __call__(self, x_btd, **_):
        return x_btd.astype(jnp.float32) * self.param("scale", nn.initializers.ones, x_btd.shape[-1:])


@pytest.mark.thorough
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("key", ["norm", "feed_forward"])
def test_a_member_that_returns_float32_leaves_the_residuals_as_they_are(
    monkeypatch, key, placement, scan_layers
):
    monkeypatch.setitem(
        {"norm": NORMS, "feed_forward": FEED_FORWARDS}[key],
        "mine",
        lambda *_, name=None, **__: OfFloat32(name=name),
    )
    options = {"norm_placement": placement, "scan_layers": scan_layers, key: "mine"}
    config = DecoderConfig(d_model=8, num_layers=2, num_heads=2, d_ff=16, dtype="bfloat16", **options)
    tokens, model = jnp.zeros((1, 4), jnp.int32), config.build(5)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    program = str(jax.make_jaxpr(model.apply)(nn.meta.unbox(params), tokens))
    sums = set(re.findall(r":(\w+\[1,4,8\]) = add ", program))
    assert sums == {"bf16[1,4,8]"}


def one_by_one(q_bthk, k_bsgk, v_bsgk, *, mask, scoring, **_):
    """Attention of one query after another, each with its own softmax."""
    t, s = q_bthk.shape[1], k_bsgk.shape[1]
    allowed_bts, out = jnp.broadcast_to(mask.dense(t, s)[:, 0], (len(q_bthk), t, s)), []
    for i in range(t):
        scores_bhs = jnp.einsum("bhk,bshk->bhs", q_bthk[:, i], k_bsgk) * scoring.scale
        weights_bhs = jax.nn.softmax(scores_bhs, where=allowed_bts[:, i, None])
        out.append(jnp.einsum("bhs,bshk->bhk", weights_bhs, v_bsgk))
    return jnp.stack(out, axis=1)


def test_a_kernel_may_be_a_partial_function(monkeypatch):
    monkeypatch.setitem(KERNELS, "mine", Kernel(functools.partial(reference, dropout_rate=0.0)))
    model = DecoderConfig(d_model=8, num_layers=1, num_heads=2, d_ff=8, kernel="mine").build(5)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert jax.eval_shape(model.apply, nn.meta.unbox(params), jnp.zeros((2, 3), jnp.int32)).shape[:2] == (
        2,
        3,
    )


@pytest.mark.thorough
def test_a_kernel_of_a_notebook_trains_as_the_reference_does(small, monkeypatch, tmp_path):
    losses = {}
    calls = []
    monkeypatch.setitem(KERNELS, "mine", Kernel(lambda *a, **o: calls.append(0) or one_by_one(*a, **o)))
    for kernel in ("mine", "reference"):
        small.model.kernel = kernel
        notebook.train(small, tmp_path / kernel, quiet=True)
        losses[kernel] = notebook.metrics(tmp_path / kernel)["train/loss"][1]
    assert calls and len(losses["mine"]) == 2
    np.testing.assert_allclose(losses["mine"], losses["reference"], rtol=1e-5)
    monkeypatch.delitem(KERNELS, "mine")
    with pytest.raises(UserError, match="kernel: 'mine'; expected one of 'auto', 'ring'"):
        notebook.load(tmp_path / "mine")


@pytest.mark.thorough
def test_the_recipe_for_a_notebook_trains_and_decodes(small, monkeypatch, tmp_path):
    assert '"runs/relu"' in RECIPE and "lm.get_config()" in RECIPE
    code = RECIPE.replace('"runs/relu"', repr(str(tmp_path / "run"))).replace("lm.get_config()", "small")
    monkeypatch.setitem(MIXERS, "relu", None)  # is removed after the test
    names = {"small": small}
    exec(code, names)
    run, params = names["run"], names["params"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["mixer"] == "relu"
    experiment, text = run.experiment, "alpha beta"
    weights_hts, *_ = experiment.attention(params, text)
    assert np.all(weights_hts >= 0) and np.any(np.tril(weights_hts) == 0)
    assert not np.allclose(weights_hts.sum(-1), 1, atol=0.1)
    ids = jnp.array([experiment.data.tokenizer.encode(text)])
    logits_btv = experiment.model.apply({"params": params}, ids)
    shown_btv, _ = experiment.model.apply({"params": params}, ids, mutable="intermediates")
    np.testing.assert_allclose(shown_btv, logits_btv, atol=1e-4)  # the weights that are shown are those used
    stepper = experiment.stepper(params)
    step_bv, cache = stepper.prefill(ids[:, :1], jnp.array([1]), ids.shape[1])
    for i in range(ids.shape[1]):
        np.testing.assert_allclose(step_bv, logits_btv[:, i, : step_bv.shape[1]], atol=1e-4)
        if i + 1 < ids.shape[1]:
            step_bv, cache = stepper.step(ids[:, i + 1], cache)


OWN = """
import jax.numpy as jnp
from configs import lm
from transformer.layers.feed_forward import FEED_FORWARDS

FEED_FORWARDS["cube"] = FEED_FORWARDS["relu"]


def get_config():
    config = lm.get_config("tiny")
    config.model.feed_forward = "cube"
    return config
"""


@pytest.mark.thorough
def test_a_config_file_may_add_a_member_which_other_commands_include(monkeypatch, tmp_path, capfd):
    file, workdir = tmp_path / "mein Maß.py", tmp_path / "run"
    file.write_text(OWN, encoding="utf-8")
    monkeypatch.setitem(FEED_FORWARDS, "cube", None)  # is removed after the test
    source = runs.write_corpus(tmp_path / "corpus")
    arguments = [f"--config={file}", f"--config.data.source={source}", f"--workdir={workdir}"]
    try:
        assert launch.main(arguments) == 0
    finally:
        INCLUDED.clear()
    suggested = re.findall(r"^  python launch.py (.*)$", capfd.readouterr().out, re.MULTILINE)
    assert len(suggested) == 3 and all(each.startswith(f"'--include={file}' ") for each in suggested)
    predict = [f"--workdir={workdir}", "--mode=predict", "--prompt=alpha"]
    del FEED_FORWARDS["cube"]
    capfd.readouterr()
    assert launch.main(predict) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: config.model.feed_forward: 'cube'; expected one of ")
    assert said.endswith(" (--include=FILE runs a file that adds it)\n")
    try:
        assert launch.main([*predict, f"--include={file}"]) == 0
        assert command(RunFolder("run")) == f"python launch.py '--include={file}' --workdir=run"
    finally:
        INCLUDED.clear()
    (tmp_path / "wrong.py").write_text("\n1 / 0\n")
    for name, message in {"no.py": "there is no file", "wrong.py": "wrong.py, line 2: ZeroDivision"}.items():
        capfd.readouterr()
        assert launch.main([*predict, f"--include={tmp_path / name}"]) == 2
        assert message in capfd.readouterr().err and not INCLUDED


OBJECTIVE = """
from dataclasses import dataclass

from configs import base, lm
from experiments import EXPERIMENTS
from experiments.language_modeling import LanguageModeling, LanguageModelingConfig


@dataclass(frozen=True)
class MineConfig(LanguageModelingConfig):
    factor: float = 1.0  # of nothing


class Mine(LanguageModeling):
    Config = MineConfig


EXPERIMENTS["mine"] = Mine


def get_config():
    return base.choose(base.defaults("mine"), "tiny", {"tiny": lm.TINY})
"""


@pytest.mark.thorough
def test_a_config_file_may_add_an_objective(monkeypatch, tmp_path, capfd):
    file, workdir = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(OBJECTIVE, encoding="utf-8")
    monkeypatch.setitem(EXPERIMENTS, "mine", "")  # is removed after the test
    arguments = [f"--config.data.source={runs.write_corpus(tmp_path / 'corpus')}", "--config.factor=2"]
    assert launch.main([f"--config={file}", f"--workdir={workdir}", *arguments]) == 0
    del EXPERIMENTS["mine"]
    capfd.readouterr()
    assert launch.main([f"--workdir={workdir}", "--mode=evaluate"]) == 2
    assert capfd.readouterr().err.endswith(" (--include=FILE runs a file that adds it)\n")
    try:
        assert launch.main([f"--workdir={workdir}", "--mode=evaluate", f"--include={file}"]) == 0
    finally:
        INCLUDED.clear()


def test_own_weights_take_no_other_kernel(monkeypatch):
    class Relu(MultiHeadAttention):
        def weights(self, scores_bhts, allowed, sinks_h=None):
            return jnp.where(allowed, jax.nn.relu(scores_bhts), 0)

    monkeypatch.setitem(MIXERS, "mine", Relu)
    from_values(DecoderConfig, {"mixer": "mine", "kernel": "reference"})
    with pytest.raises(UserError, match=r"^config.kernel: 'blockwise' with Relu.*; expected 'auto' or 'ref"):
        from_values(DecoderConfig, {"mixer": "mine", "kernel": "blockwise"})
