"""The language model in one file is the library's: the same losses, optimizer, initial values and samples."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from examples import train_lm
from experiments import find_experiment
from tests import runs
from transformer.decoding.sampling import keep_top_p
from transformer.training.optim.optimizer import make_optimizer
from transformer.training.optim.roles import roles_of
from transformer.training.state import State
from transformer.training.step import make_train_step
from workdir.opening import check_config, read_config

SMALL = train_lm.Config(
    d_model=32,
    num_layers=2,
    num_heads=2,
    d_ff=48,
    sequence_length=32,
    batch_size=4,
    steps=20,
    warmup_steps=5,
    learning_rate=3e-3,
)
WIDE = dataclasses.replace(SMALL, d_model=96, num_layers=3, num_heads=4, d_ff=160, sequence_length=64, seed=1)

CORPUS = b"def add(x, y):\n    return x + y\n\n\nclass Sum:\n    total = 0.0\n" * 40


@pytest.fixture
def corpus_n():
    return np.frombuffer(CORPUS, np.uint8).astype(np.int32)


@functools.cache
def library(c):
    """The experiment of `configs/lm.py` with AdamW and the example's sizes, and its initial parameters."""
    groups = {"data": ["sequence_length"], "train": ["batch_size", "steps"]}
    groups["model"] = ["d_model", "num_layers", "num_heads", "d_ff"]
    groups["optimizer"] = ["warmup_steps", "learning_rate", "weight_decay", "clip_norm"]
    keys = {f"{group}.{name}": getattr(c, name) for group, names in groups.items() for name in names}
    assert len(keys) + len(["seed"]) == len(dataclasses.fields(c))
    keys |= {"seed": c.seed, "optimizer.name": "adamw", "data.tokenizer": "bytes", "model.vocab_multiple": 1}
    keys |= {"sample.temperature": 0.0, "train.checkpoint_every": 0, "train.sample_every": 0}
    overrides = [(key, str(value)) for key, value in keys.items()]
    config = check_config(read_config("configs/lm.py", overrides), overrides)
    experiment = find_experiment("language_modeling")(config)
    return experiment, nn.meta.unbox(jax.jit(experiment.init)(jax.random.key(c.seed)))


def converted(params):
    """The library's parameters as those of the example, which has a tree for each block."""
    blocks = params["blocks"]
    stacked = {name: blocks[name]["scale"] for name in ("attention_norm", "feed_forward_norm")}
    for group in ("attention", "feed_forward"):
        stacked |= {name: leaf["kernel"] for name, leaf in blocks[group].items()}
    layers = len(stacked["query"])
    return {
        "embedding": jnp.copy(params["embedding"]["table"]),  # the step donates its arrays
        "blocks": [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(layers)],
        "final_norm": jnp.copy(params["final_norm"]["scale"]),
    }


def library_batch(batch):
    """Rows of one document each, which are not packed."""
    tokens_bt, targets_bt = batch
    segments_bt = np.ones_like(tokens_bt)
    positions_bt = np.broadcast_to(np.arange(tokens_bt.shape[1]), tokens_bt.shape)
    weights_bt = segments_bt.astype(np.float32)
    batch = {"tokens": tokens_bt, "targets": targets_bt, "weights": weights_bt}
    return batch | {"segments": segments_bt, "positions": positions_bt}


def test_the_loss_of_a_batch_is_that_of_the_library(corpus_n):
    experiment, initial = library(SMALL)
    batch = train_lm.batch_at(corpus_n, 0, SMALL)
    evaluate = jax.jit(functools.partial(experiment.loss, train=False))
    expected = evaluate(initial, library_batch(batch), jax.random.key(0))["loss"]
    loss = jax.jit(train_lm.loss)(converted(initial), batch)
    np.testing.assert_allclose(loss, expected.total / expected.weight, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("c", [SMALL, WIDE], ids=["small", "wide"])
def test_twenty_steps_have_the_losses_of_the_library(c, corpus_n):
    experiment, initial = library(c)
    config = experiment.config.optimizer
    roles = roles_of(lambda: jax.eval_shape(experiment.init, jax.random.key(0)))
    theirs, _ = make_optimizer(config, c.steps, roles=roles)
    their_step = jax.jit(make_train_step(experiment, theirs, seed=c.seed, clip_norm=config.clip_norm))
    state = State.create(initial, theirs, ema=False)
    ours, params = train_lm.make_optimizer(c), converted(initial)
    opt_state, losses = ours.init(params), []
    for step in range(20):
        batch = train_lm.batch_at(corpus_n, step, c)
        params, opt_state, loss = train_lm.train_step(params, opt_state, batch, optimizer=ours)
        state, metrics = their_step(state, library_batch(batch))
        losses.append((float(loss), float(metrics["loss"].total / metrics["loss"].weight)))
    here, there = np.transpose(losses)
    assert here[-1] < here[0] - 1  # it has learnt
    np.testing.assert_allclose(here, there, rtol=1e-6)
    for own, expected in zip(*map(jax.tree.leaves, (params, converted(state.params))), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-4)


@pytest.mark.thorough
def test_initial_parameters_have_the_shapes_and_the_variances_of_the_library():
    _, initial = library(WIDE)
    expected = jax.tree_util.tree_leaves_with_path(converted(initial))
    own = dict(jax.tree_util.tree_leaves_with_path(train_lm.init(jax.random.key(3), WIDE)))
    assert {path: leaf.shape for path, leaf in expected} == {path: leaf.shape for path, leaf in own.items()}
    for path, leaf in expected:
        assert float(jnp.std(own[path])) == pytest.approx(float(jnp.std(leaf)), rel=0.05), path


@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
def test_the_filter_keeps_the_tokens_that_the_library_keeps(p, rng):
    logits_bv = np.float32(rng.normal(size=(50, 257), scale=3).round(1))  # with ties
    own = jax.vmap(lambda logits_v: train_lm.keep_top_p(logits_v, p))(logits_bv)
    np.testing.assert_array_equal(own, keep_top_p(logits_bv, p))


@pytest.mark.thorough
def test_the_most_probable_text_is_that_of_the_library():
    experiment, initial = library(SMALL)
    strong = jax.tree.map(lambda leaf: 3 * leaf, initial)  # else one token follows all others
    prompt, new = "def add", SMALL.sequence_length - len("<def add")
    (completions,) = experiment.predict(strong, [prompt])
    own = train_lm.sample(converted(strong), prompt, SMALL, temperature=1e-6)
    assert own.startswith(prompt) and len(set(own)) > 4
    assert completions[0].startswith(own.removeprefix(prompt)[: new // 2])


def test_a_sample_ends_before_the_token_for_the_end(monkeypatch):
    monkeypatch.setattr(train_lm, "write", lambda *_, **options: np.array([256, 97, 98, 256, 99, 256]))
    assert train_lm.sample({}, "a", SMALL) == "ab"
    monkeypatch.setattr(train_lm, "write", lambda *_, **options: np.array([256, 97, 98, 0xC3]))
    assert train_lm.sample({}, "a", dataclasses.replace(SMALL, sequence_length=4)) == "ab\ufffd"


def test_a_batch_is_a_function_of_seed_and_step(corpus_n):
    tokens_bt, targets_bt = train_lm.batch_at(corpus_n, 3, SMALL)
    assert tokens_bt.shape == targets_bt.shape == (SMALL.batch_size, SMALL.sequence_length)
    np.testing.assert_array_equal(tokens_bt[:, 1:], targets_bt[:, :-1])
    assert bytes(tokens_bt[0].astype(np.uint8)) in CORPUS
    np.testing.assert_array_equal(tokens_bt, train_lm.batch_at(corpus_n, 3, SMALL)[0])
    others = train_lm.batch_at(corpus_n, 4, SMALL), train_lm.batch_at(corpus_n, 3, WIDE)
    assert all(not np.array_equal(tokens_bt[:, :8], other[:4, :8]) for other, _ in others)


def test_the_corpus_is_the_library_without_tests_and_each_file_has_an_end(monkeypatch, tmp_path):
    files = [
        *(f"{i:02}.py" for i in range(40)),
        "test/a.py",
        "site-packages/b.py",
        "json/tests/c.py",
        "d.txt",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name[:2])
    monkeypatch.setattr(train_lm.sysconfig, "get_path", lambda name: str(tmp_path))
    training_n, validation_n = train_lm.read_corpus()
    assert bytes(validation_n.clip(0, 255).astype(np.uint8)) == b"00\xff20\xff"
    assert training_n[:4].tolist() == [ord("0"), ord("1"), train_lm.END, ord("0")]
    assert len(training_n) == 3 * 38


@pytest.mark.thorough
def test_the_program_prints_losses_and_a_sample(corpus_n, monkeypatch, capsys):
    monkeypatch.setattr(train_lm, "read_corpus", lambda: (corpus_n, corpus_n))
    train_lm.main(SMALL)
    parameters, step, validation, _, *text = capsys.readouterr().out.splitlines()
    assert parameters.endswith("parameters, 2,440 tokens") and step.startswith("step   20  loss ")
    assert validation.startswith("validation: ") and validation.endswith(" bits per byte")
    assert "\n".join(text).startswith("def fib(")


def test_it_is_one_page():
    assert len((runs.ROOT / "examples/train_lm.py").read_text().splitlines()) <= 250
