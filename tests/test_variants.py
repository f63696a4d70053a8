"""Variants of blocks, positions, logits and optimizers, together with all else that a run may ask for."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.parameters import random_params
from transformer.models.decoder import DecoderConfig
from transformer.training.losses.token_losses import LossConfig, token_losses

VARIANT = ["feed_forward=relu2", "parallel_sublayers=true", "logit_soft_cap=5", "position_fraction=0.25"]


def test_chunks_of_capped_logits_have_the_same_loss(rng):
    model = DecoderConfig(d_model=16, num_layers=1, num_heads=2, d_ff=8, logit_soft_cap=1.5).build(23)
    tokens, x = rng.integers(0, 23, (2, 7)), jnp.asarray(rng.normal(size=(2, 7, 16)) * 5, jnp.float32)
    params = random_params(rng, model, tokens)
    batch = {"targets": tokens, "weights": jnp.ones((2, 7))}

    def loss(x, chunk_size):
        def unembed(x):
            return model.apply({"params": params}, x, method="unembed")

        config = LossConfig(chunk_size=chunk_size)
        return token_losses(unembed, x, batch, config, 23, True)["loss"].mean

    table = np.float64(params["embedding"]["table"])[:23]
    logits = 1.5 * np.tanh(np.float64(x) @ table.T / 1.5)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -np.mean(np.take_along_axis(log_p, tokens[..., None], axis=-1))
    whole, chunked = (jax.jit(jax.value_and_grad(lambda x, n=n: loss(x, n)))(x) for n in (0, 3))
    for found, _ in (whole, chunked):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(chunked[1], whole[1], atol=1e-6)


def launched(*arguments):
    done = subprocess.run(
        [sys.executable, "launch.py", *arguments],
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "4"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize(("config", "more"), [
    ("lm", ["model.scan_layers=true", "model.num_layers=2", "optimizer.embedding_weight_decay=0.1",
            "optimizer.name=cautious.contrib.muon"]),
    ("lm", ["model.skips=true", "model.num_layers=3", "model.remat=full", "model.lora_rank=2",
            "optimizer.train_only=lora,skip", "optimizer.name=cautious.adamw",
            "model.value_embeddings=(0,-1)"]),
    ("transformer_xl", ["model.skips=true", "model.num_layers=2", "model.position=rope",
                        "model.value_embeddings=(1,)"]),
])  # fmt: skip
def test_together_on_four_devices(tmp_path, config, more):
    """In bfloat16, with a chunked loss, microbatches and a mesh; then samples and scores, with a cache."""
    keys = ["train.steps=3", "train.log_every=1", "train.batch_size=8", "parallel.microbatches=2"]
    keys += ["optimizer.warmup_steps=0", "loss.chunk_size=8", "model.dtype=bfloat16", "model.head_dim=16"]
    keys += ["parallel.mesh.tensor=2", "parallel.mesh.data=2", *(f"model.{key}" for key in VARIANT), *more]
    workdir = f"--workdir={tmp_path}/run"
    source = runs.write_corpus(tmp_path / "corpus")
    flags = [f"--config.data.source={source}", *(f"--config.{key}" for key in keys)]
    launched(f"--config=configs/{config}.py:tiny", workdir, *flags)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert len(set(losses)) == 3 and np.isfinite(losses).all()
    (tmp_path / "pairs.tsv").write_text("alpha\tbeta\n")
    launched(workdir, "--mode=score", f"--input={tmp_path}/pairs.tsv", f"--output={tmp_path}/scores.tsv")
    assert (tmp_path / "scores.tsv").read_text()
    launched(workdir, "--mode=predict", "--prompt=alpha", f"--output={tmp_path}/out.txt")
    assert (tmp_path / "out.txt").read_text()
