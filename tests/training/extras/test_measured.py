"""What a measuring step finds in each layer, against float64 NumPy, and that it changes nothing else."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import launch
from tests import runs
from tests.layers import numpy_attention
from tests.models import numpy_decoder
from tests.parameters import random_params
from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns.window import Window
from transformer.layers.measures import QUERIES, Measures, attention_measures
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.sums import Sum, named_terms
from transformer.training.extras.measured import layer_norms, measuring
from transformer.training.state import State
from transformer.training.step import make_train_step
from workdir.opening import load

VOCAB, ROWS, LENGTH = 19, 4, 8
SIZES = {"d_model": 16, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2, "d_ff": 12, "max_length": 32}
KINDS = {
    "layers": ("window", "full"),
    "layer_kinds": {"window": {"pattern": "window", "pattern_size": 3}, "full": {"position": "none"}},
}


class Objective:
    """A language model's loss over rows with padding, and the terms of its layers."""

    def __init__(self, config):
        self.model = Decoder(config, VOCAB)

    def loss(self, params, batch, rng, train):
        x_btd, sown = self.model.apply(
            {"params": params}, batch["tokens"], segments_bt=batch["segments"], train=train, method="hidden",
            mutable="terms",
        )  # fmt: skip
        logits_btv = self.model.apply({"params": params}, x_btd, method="unembed")
        losses_bt = optax.softmax_cross_entropy_with_integer_labels(logits_btv, batch["targets"])
        return named_terms(sown) | {"loss": Sum.of(losses_bt, batch["segments"] > 0)}

    def weigh(self, batch):
        return {"loss": jnp.sum(batch["segments"] > 0)}


def make(rng, **changes):
    config = DecoderConfig(**SIZES | changes)
    params = random_params(rng, Decoder(config, VOCAB), jnp.zeros((1, 1), jnp.int32))
    batch = {name: rng.integers(0, VOCAB, (ROWS, LENGTH)) for name in ("tokens", "targets")}
    # Two documents, and padding.
    cuts = np.sort(rng.integers(1, LENGTH + 1, (ROWS, 2)), axis=1)
    at = np.arange(LENGTH)
    batch["segments"] = np.where(at < cuts[:, :1], 1, np.where(at < cuts[:, 1:], 2, 0))
    return config, params, batch


def steps(config, microbatches=1):
    """The plain step and the measuring one."""
    optimizer = optax.sgd(0.1)
    options = {"seed": 0, "microbatches": microbatches, "clip_norm": 0.1}
    plain = make_train_step(Objective(config), optimizer, **options)
    norms = layer_norms(config.layers)
    both = measuring(
        make_train_step(Objective(config), optimizer, norms=norms, **options), Measures(True, True)
    )
    return optimizer, jax.jit(plain), jax.jit(both)


def expected_inside(monkeypatch, config, params, batch):
    """The values of activations and attention, by `numpy_decoder`."""
    exact, seen, layers = numpy_decoder.exact(params), [], []
    attend = numpy_attention.Scores.attend

    def recording(self, h, q_tk, k_sk, v_sk, scale):
        scores_ts = np.where(self.allowed_ts, self.of_head(h, q_tk, k_sk, scale), -np.inf)
        seen.append(scores_ts)
        return attend(self, h, q_tk, k_sk, v_sk, scale)

    monkeypatch.setattr(numpy_attention.Scores, "attend", recording)
    top = []
    for tokens_t, segments_t in zip(batch["tokens"], batch["segments"], strict=True):
        at_t, real = np.arange(LENGTH), segments_t > 0
        allowed_ts = (at_t[:, None] >= at_t) & (segments_t[:, None] == segments_t)
        x_td = numpy_decoder.embed(exact, config, tokens_t, at_t)
        x_td, inputs = numpy_decoder.stack(config, exact["blocks"], x_td, at_t, allowed_ts)
        layers.append([x_td[real] for x_td in [*inputs[1:], x_td]])
        last_td = numpy_decoder.last_norm(exact, config, "final_norm", x_td)
        top.append(np.max(last_td @ numpy_decoder.head(exact)[:, :VOCAB]))
    found = {"logits/largest": max(top)}
    per_layer = np.reshape(seen, (ROWS, config.num_layers, config.num_heads, LENGTH, LENGTH))
    for layer, scores in enumerate(per_layer.swapaxes(0, 1)):
        entropies = []
        for row, segments_t in zip(scores, batch["segments"], strict=True):
            e = np.exp(row[:, segments_t > 0])
            w = e / e.sum(axis=-1, keepdims=True)
            entropies.append(-np.sum(w * np.log(np.where(w > 0, w, 1)), axis=-1).ravel())
        found[f"attention/entropy/blocks/{layer}"] = np.mean(np.concatenate(entropies))
        real = np.broadcast_to((batch["segments"] > 0)[:, None, :, None], scores.shape)
        found[f"attention/largest_score/blocks/{layer}"] = scores[real].max()
        x = np.concatenate([row[layer] for row in layers])
        found[f"norms/activation/blocks/{layer}"] = np.sqrt(np.mean(x**2))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [
    {},
    {"scan_layers": True, "remat": "full"},
    {"position": "alibi", "norm_placement": "post"},
    KINDS,
])  # fmt: skip
def test_each_layer_is_measured(rng, monkeypatch, changes):
    config, params, batch = make(rng, **changes)
    optimizer, plain, both = steps(config)
    state = State.create(params, optimizer, False)
    new, metrics = both(state, batch)
    expected = expected_inside(monkeypatch, config, params, batch)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name].mean, value, rtol=2e-4, err_msg=name)
    # What is learned is what the plain step learns, and the norms are those of this update.
    same, _ = plain(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), new.params, same.params)
    tops = [name.removeprefix("norms/gradient/") for name in metrics if name.startswith("norms/gradient/")]
    assert {f"blocks/{i}" for i in range(3)} | {"embedding", "final_norm"} >= set(tops) and len(tops) >= 4
    total = sum(float(metrics[f"norms/gradient/{top}"].mean) ** 2 for top in tops)
    np.testing.assert_allclose(np.sqrt(total), metrics["gradient_norm"].mean, rtol=1e-5)  # before clipping
    moved = jax.tree.map(jnp.subtract, new.params, params)
    for kind, tree in {"update": moved, "parameter": new.params}.items():
        np.testing.assert_allclose(
            metrics[f"norms/{kind}/embedding"].mean, np.linalg.norm(tree["embedding"]["table"]), rtol=1e-4
        )
        for i in range(3):
            norm = optax.tree.norm(jax.tree.map(lambda x, i=i: x[i], tree["blocks"]))
            np.testing.assert_allclose(metrics[f"norms/{kind}/blocks/{i}"].mean, norm, rtol=1e-4)


def test_a_layer_of_a_kind_has_its_number_in_the_stack(rng):
    tree = {"blocks": {kind: {"norm": {"scale": rng.normal(size=(2, 3))}} for kind in ("a", "b")}}
    found = layer_norms(("a", "b"))(gradient=jax.tree.map(jnp.asarray, tree))
    for i, (kind, n) in enumerate([("a", 0), ("b", 0), ("a", 1), ("b", 1)]):
        expected = np.linalg.norm(tree["blocks"][kind]["norm"]["scale"][n])
        np.testing.assert_allclose(found[f"norms/gradient/blocks/{i}"].mean, expected, rtol=1e-6)


@pytest.mark.thorough
def test_microbatches_measure_the_same_batch(rng):
    config, params, batch = make(rng)
    batch["segments"][:] = 1
    found = []
    for microbatches in (1, 2):
        optimizer, _, both = steps(config, microbatches)
        found.append(both(State.create(params, optimizer, False), batch)[1])
    for name in found[0]:
        if "largest" not in name:  # of microbatches the mean of the largest
            np.testing.assert_allclose(found[1][name].mean, found[0][name].mean, rtol=1e-4, err_msg=name)
    assert found[1]["logits/largest"].mean <= found[0]["logits/largest"].mean


def test_of_long_rows_evenly_spaced_queries_are_measured(rng):
    """Against all weights: a window, documents, grouped heads and queries that start after a memory."""
    t, m, h, g, k = 2 * QUERIES, 5, 4, 2, 8
    q, key = rng.normal(size=(3, t, h, k)) * 2, rng.normal(size=(3, m + t, g, k)) * 2
    segments = np.sort(rng.integers(0, 4, (3, m + t)), axis=1)[:, ::-1]
    mask = Mask(
        jnp.asarray(segments[:, m:]), jnp.asarray(segments), start=m, causal=True, pattern=Window(20, 1)
    )
    entropy, largest = attention_measures(
        jnp.asarray(q, jnp.float32), jnp.asarray(key, jnp.float32), mask, Scoring()
    )
    rows, places = segments[0], range(0, t, 2)
    total, count, most = 0.0, 0, -np.inf
    for i in places:
        j = np.array([j for j in range(m + i + 1) if rows[j] == rows[m + i] and m + i - j < 20])
        for head in range(h if rows[m + i] else 0):
            scores = key[0, j, head * g // h] @ q[0, i, head] / np.sqrt(k)
            w = np.exp(scores - scores.max())
            w /= w.sum()
            total, count, most = total - np.sum(w * np.log(w)), count + 1, max(most, scores.max())
    np.testing.assert_allclose(entropy.mean, total / count, rtol=1e-4)
    np.testing.assert_allclose(largest.mean, most, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_run_logs_them_at_logged_steps_and_learns_the_same(tmp_path):
    source, params, lines = runs.write_corpus(tmp_path / "corpus"), {}, {}
    for measured in (False, True):
        workdir = tmp_path / str(measured)
        keys = ["train.steps=5", "train.log_every=2", "optimizer.warmup_steps=0", "model.num_layers=2"]
        keys += [f"train.log_norms={measured}", f"train.log_attention={measured}"]
        assert launch.main(runs.tiny(source, workdir, *(f"--config.{key}" for key in keys))) == 0
        params[measured] = load(workdir)[1]
        lines[measured] = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *params.values())
    added = [line.keys() - plain.keys() for plain, line in zip(*lines.values(), strict=True)]
    assert len(added) == 3 and not added[2]  # the last line is that of step 5, which is not a logged one
    for name in ("norms/activation", "norms/update", "attention/entropy"):
        assert {f"train/{name}/blocks/{i}" for i in range(2)} <= added[0] & added[1]


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("config", ["transformer_xl", "translation", "bert"])
def test_other_models_on_four_devices(tmp_path, config):
    """With a mesh of tensor and data parallelism, microbatches, scanned layers, bfloat16."""
    keys = ["train.steps=2", "train.log_every=1", "train.batch_size=8", "parallel.microbatches=2"]
    keys += ["train.log_norms=true", "train.log_attention=true", "model.scan_layers=true"]
    keys += ["parallel.mesh.tensor=2", "parallel.mesh.data=2", "model.dtype=bfloat16", "train.writers=jsonl"]
    source = {"translation": "written_forms"}.get(config) or runs.write_corpus(tmp_path / "corpus")
    arguments = [f"--config=configs/{config}.py:tiny", f"--workdir={tmp_path}/run"]
    arguments += [f"--config.data.source={source}", *(f"--config.{key}" for key in keys)]
    command = [sys.executable, "launch.py", *arguments]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run(command, cwd=runs.ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    stacks = ("encoder", "decoder") if config == "translation" else ("blocks",)
    for stack in stacks:
        assert (
            line[f"train/norms/activation/{stack}/0"] > 0 and line[f"train/attention/entropy/{stack}/0"] > 0
        )
    if config == "translation":
        assert line["train/cross_attention/entropy/decoder/0"] > 0
    if config != "bert":
        assert np.isfinite(line["train/logits/largest"])
    gradients = [value for name, value in line.items() if name.startswith("train/norms/gradient/")]
    np.testing.assert_allclose(np.sqrt(np.sum(np.square(gradients))), line["train/gradient_norm"], rtol=1e-4)
