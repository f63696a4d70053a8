"""What saves memory in training saves it in evaluation, and changes nothing that is measured."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import launch
from tests import runs
from transformer.evaluation.likelihood import by_row
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.training import step as step_module
from transformer.training.losses.token_losses import LossConfig, token_losses
from transformer.training.step import in_microbatches, make_eval_step

VOCAB, ROWS, LENGTH = 2000, 8, 64


class Objective:
    """A language model whose logits are most of its memory."""

    def __init__(self, chunk_size=0):
        self.model = Decoder(DecoderConfig(d_model=16, num_layers=1, num_heads=2, d_ff=32), VOCAB)
        self.config = LossConfig(chunk_size=chunk_size)

    def loss(self, params, batch, rng, train):
        bound = self.model.bind({"params": params})
        x_btd = bound.hidden(batch["tokens"], train=train)
        return token_losses(bound.unembed, x_btd, batch, self.config, VOCAB, train)

    def weigh(self, batch):
        return {"loss": jnp.sum(batch["weights"])}


@pytest.mark.thorough
def test_microbatches_and_chunks_hold_for_evaluation(rng):
    tokens = rng.integers(0, VOCAB, (2, ROWS, LENGTH)).astype(np.int32)
    weights = (rng.random((ROWS, LENGTH)) < rng.random((ROWS, 1))).astype(np.float32)
    batch = {"tokens": tokens[0], "targets": tokens[1], "weights": weights, "bytes": 2 * weights}
    params = nn.meta.unbox(jax.jit(Objective().model.init)(jax.random.key(0), tokens[0, :1]))["params"]

    def measured(chunk_size=0, microbatches=1):
        step = in_microbatches(by_row(make_eval_step(Objective(chunk_size))), microbatches)
        compiled = jax.jit(step).lower(params, batch).compile()
        return compiled(params, batch), compiled.memory_analysis().temp_size_in_bytes

    (whole, by_rows), most = measured()
    logits = 4 * ROWS * LENGTH * VOCAB
    assert most > logits  # or the test shows nothing
    for keys in ({"microbatches": 4}, {"chunk_size": 16}):
        (found, rows), size = measured(**keys)
        assert size < 0.4 * most, keys
        for name, term in whole.items():
            np.testing.assert_allclose(found[name].total, term.total, rtol=1e-5)
            assert found[name].weight == term.weight
            np.testing.assert_allclose(rows[name], by_rows[name], rtol=1e-5)


def classified(folder) -> list[str]:
    folder.mkdir()
    with (folder / "texts.csv").open("w", newline="") as file:
        rows = [{"text": f"word{i} {'good' if i % 2 else 'bad'}", "label": "ab"[i % 2]} for i in range(400)]
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(rows)
    return ["--config=configs/classification.py:tiny", f"--config.data.source=csv:{folder}/texts.csv"]


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("kind", ["lm", "transformer_xl", "classification"])
def test_every_evaluator_cuts_its_batches(monkeypatch, capsys, tmp_path, kind):
    """By `parallel.microbatches`; what it measures stays the same."""
    source = runs.write_corpus(tmp_path / "corpus")
    arguments = [f"--config=configs/{kind}.py:tiny", f"--config.data.source={source}"]
    if kind == "classification":
        arguments = classified(tmp_path / "labelled")
    folder = f"--workdir={tmp_path / 'run'}"
    assert launch.main([*arguments, folder, "--config.train.batch_size=16"]) == 0, capsys.readouterr().err
    calls = []
    original = step_module.split_rows
    monkeypatch.setattr(step_module, "split_rows", lambda *each: calls.append(each[1]) or original(*each))

    def evaluated(microbatches):
        capsys.readouterr()
        flags = [folder, "--mode=evaluate", f"--config.parallel.microbatches={microbatches}"]
        assert launch.main(flags) == 0, capsys.readouterr().err
        words = [line.split() for line in capsys.readouterr().out.splitlines()]
        return {line[0]: float(line[1]) for line in words if len(line) > 1 and line[0].startswith("eval/")}

    whole, cut = evaluated(1), evaluated(2)
    assert calls and set(calls) == {2}
    assert whole.keys() == cut.keys() and len(whole) > 1
    for name, value in whole.items():
        assert cut[name] == pytest.approx(value, rel=1e-4), name
