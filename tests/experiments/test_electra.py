"""Replaced-token detection: its loss against float64 NumPy, and what each part learns from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import launch
from experiments import find_experiment
from tests import runs
from transformer.data.encoders.replaced_text import Replacing
from transformer.errors import UserError
from transformer.training import parallel
from workdir import api, opening
from workdir.opening import read_config

pytestmark = pytest.mark.usefixtures("in_root")

SMALL = {"sequence_length": "32", "tokenizer": "bytes", "document": "file", "workers": "0"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An experiment, its first batch of training, and random parameters."""
    source = runs.write_corpus(tmp_path_factory.mktemp("corpus"))
    keys = [(f"data.{key}", value) for key, value in SMALL.items()] + [("data.source", source)]
    keys += [("model.num_layers", "2"), ("train.batch_size", "6"), ("model.dropout", "0")]
    config = opening.check_config(read_config("configs/electra.py:tiny"), keys)
    experiment = find_experiment("electra")(config)
    params = jax.jit(lambda: parallel.unboxed(experiment.init(jax.random.key(1))))()
    params = jax.tree.map(lambda leaf: 3 * leaf, params)
    return experiment, params, experiment.train_data().batch_at(0)


def terms_of(made, batch, params=None, train=False):
    experiment, own, _ = made
    return jax.jit(lambda p, b: experiment.loss(p, b, jax.random.key(0), train))(
        own if params is None else params, batch
    )


def test_the_loss_is_that_of_numpy(made):
    """Of the model's logits: the masked tokens' nats, and 50 times the mean binary cross-entropy of all."""
    experiment, params, batch = made
    batch = dict(batch)
    mask, v = experiment.data.special_tokens.mask, experiment.model.vocab_size
    here = {
        name: batch[f"{name.removesuffix('_bt')}"] for name in ("segments_bt", "positions_bt", "types_bt")
    }
    apply = jax.jit(
        lambda tokens: experiment.model.apply({"params": params}, tokens, batch["places"], **here)
    )
    logits_bmv, _ = apply(batch["tokens"])
    log_p = np.asarray(logits_bmv, np.float64)[..., :v]
    log_p -= np.log(np.exp(log_p - log_p.max(-1, keepdims=True)).sum(-1, keepdims=True)) + log_p.max(
        -1, keepdims=True
    )
    corrupted, original, targets = (batch[name].copy() for name in ("tokens", "original", "targets"))
    shape = (batch["places"].shape[1], v)
    for row, (draw, places, guessed) in enumerate(
        zip(batch["draws"], batch["places"], batch["guessed"], strict=True)
    ):
        noise_mv = np.asarray(jax.random.gumbel(jax.random.key(draw), shape))
        for m in np.flatnonzero(guessed):
            corrupted[row, places[m]] = (logits_bmv[row, m, :v] + noise_mv[m]).argmax()
        first = places[0]  # of each row one token is drawn as it was, which does not count as replaced
        original[row, first] = targets[row, 0] = corrupted[row, first]
    batch |= {"original": original, "targets": targets}
    nll_bm = -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    assert (corrupted != mask).all()
    replaced = corrupted != original
    assert replaced.any() and not replaced[batch["tokens"] != mask].any()
    logits_bt = np.asarray(apply(corrupted)[1], np.float64)
    bce_bt = np.where(replaced, np.log1p(np.exp(-logits_bt)), np.log1p(np.exp(logits_bt)))
    real_bt = batch["segments"] > 0
    terms = terms_of(made, batch)
    np.testing.assert_allclose(
        terms["loss"].mean, (nll_bm * batch["guessed"]).sum() / batch["guessed"].sum(), rtol=1e-5
    )
    np.testing.assert_allclose(terms["detection_loss"].mean, bce_bt[real_bt].mean(), rtol=1e-5)
    np.testing.assert_allclose(terms["detection"].mean, 50 * bce_bt[real_bt].mean(), rtol=1e-5)
    right = (logits_bt > 0) == replaced
    np.testing.assert_allclose(terms["detection_accuracy"].mean, right[real_bt].mean(), rtol=1e-6)
    np.testing.assert_allclose(terms["detection_recall"].mean, right[replaced].mean(), rtol=1e-6)
    weights = experiment.weigh(batch)
    assert weights["loss"] == batch["guessed"].sum() and weights["detection"] == real_bt.sum()
    assert weights.keys() == {"loss", "detection"}


def gradient(made, term):
    experiment, params, batch = made
    return jax.jit(jax.grad(lambda p: experiment.loss(p, batch, jax.random.key(0), True)[term].mean))(params)


def test_each_part_learns_from_its_own_loss_and_the_embeddings_from_both(made):
    of_generator, of_discriminator = gradient(made, "loss"), gradient(made, "detection")
    generator = ("project", "generator", "transform", "transform_norm", "output_bias")
    for name in of_generator:
        largest = [
            max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads[name]))
            for grads in (of_generator, of_discriminator)
        ]
        if name in generator:
            assert largest[0] > 0 == largest[1], name
        elif name != "encoder":
            assert largest[1] > 0 == largest[0], name
    trunks = [grads["encoder"]["trunk"] for grads in (of_generator, of_discriminator)]
    assert not any(leaf.any() for leaf in jax.tree.leaves(trunks[0]))
    assert all(leaf.any() for leaf in jax.tree.leaves(trunks[1]))
    for grads in (of_generator, of_discriminator):
        assert grads["encoder"]["embedding"]["table"].any() and grads["encoder"]["token_types"]["table"].any()
    reported = gradient(made, "detection_loss")
    assert not any(leaf.any() for leaf in jax.tree.leaves(reported))


def test_what_is_drawn_does_not_depend_on_how_a_batch_is_divided(made):
    """Sums of both halves of a batch, and of a batch with rows of padding, are those of the whole."""
    _, _, batch = made
    whole = terms_of(made, batch)
    parts = [terms_of(made, {k: x[rows] for k, x in batch.items()}) for rows in (slice(0, 2), slice(2, 6))]
    empty = {k: np.zeros_like(x[:2]) for k, x in batch.items()}
    padded = terms_of(made, {k: np.concatenate([x, empty[k]]) for k, x in batch.items()})
    for name, term in whole.items():
        np.testing.assert_allclose(parts[0][name].total + parts[1][name].total, term.total, rtol=2e-5)
        np.testing.assert_allclose(padded[name].total, term.total, rtol=2e-5)
        np.testing.assert_allclose(padded[name].weight, term.weight)
    again = terms_of(made, batch | {"draws": batch["draws"] + 1})
    assert (
        again["loss"].mean == whole["loss"].mean
        and again["detection_loss"].mean != whole["detection_loss"].mean
    )


def test_padding_does_not_count(made):
    _, _, batch = made
    padding = batch["segments"] == 0
    short = {name: x.copy() for name, x in batch.items()}
    for name in ("segments", "real"):
        short[name][:, 20:] = 0
    outside = short["places"] >= 20
    short["guessed"][outside], short["places"][outside], short["targets"][outside] = 0, 0, 0
    whole = terms_of(made, short)
    other = {name: x.copy() for name, x in short.items()}
    other["tokens"][:, 20:] = 7
    other["original"][:, 20:] = 9
    changed = terms_of(made, other)
    for name, term in whole.items():
        np.testing.assert_allclose(changed[name].total, term.total, rtol=1e-5)
    assert whole["detection"].weight == (short["real"]).sum() < (~padding).sum()


def test_all_chosen_tokens_are_masks_and_draws_depend_on_the_place(made):
    experiment, _, batch = made
    mask = experiment.data.special_tokens.mask
    masked_bt = batch["tokens"] == mask
    assert masked_bt.sum() == batch["guessed"].sum() > 0
    np.testing.assert_array_equal(batch["tokens"][~masked_bt], batch["original"][~masked_bt])
    rows, columns = np.nonzero(batch["guessed"])
    np.testing.assert_array_equal(
        batch["original"][rows, batch["places"][rows, columns]], batch["targets"][rows, columns]
    )
    replacing = experiment.data.masking(3)
    assert isinstance(replacing, Replacing)
    clean = {"tokens": batch["original"], "segments": batch["segments"] * (np.arange(32) < 25)}
    places = np.arange(6) + 40
    together, alone = replacing(clean, places), replacing({k: x[4:] for k, x in clean.items()}, places[4:])
    for name in ("tokens", "draws", "places", "real"):
        np.testing.assert_array_equal(together[name][4:], alone[name])
    np.testing.assert_array_equal(together["real"], clean["segments"] > 0)
    assert len({*together["draws"].tolist()}) == 6
    assert (experiment.data.masking(4)(clean, places)["draws"] != together["draws"]).all()


def test_the_generator_is_smaller_by_its_key(made):
    experiment, params, _ = made
    c = experiment.config
    width = round(c.generator.share * c.model.d_model)
    assert params["project"]["kernel"].shape == (c.model.d_model, width)
    assert params["transform"]["kernel"].shape == (width, c.model.d_model)
    for share, size in ((1.0, c.model.d_model), (0.5, c.model.d_model // 2)):
        other = dataclasses.replace(c, generator=dataclasses.replace(c.generator, share=share))
        shapes = jax.eval_shape(
            find_experiment("electra")(other, experiment.data.tokenizer).init, jax.random.key(0)
        )
        assert parallel.unboxed(shapes)["project"]["kernel"].shape == (c.model.d_model, size)


def test_pairs_of_texts_are_refused():
    with pytest.raises(UserError, match=r"data.next_sentence: True; expected False: electra reads one text"):
        opening.check_config(read_config("configs/electra.py:tiny"), [("data.next_sentence", "true")])


@pytest.mark.thorough
def test_a_classifier_starts_from_the_discriminator(tmp_path, capfd):
    """And leaves out the generator; tokens are answered with the probability that they were replaced."""
    source = runs.write_corpus(tmp_path / "corpus")
    keys = [f"--config.data.source={source}", "--config.data.document=file", f"--workdir={tmp_path / 'run'}"]
    assert launch.main(["--config=configs/electra.py:tiny", *keys]) == 0
    run, params = api.load(tmp_path / "run")
    (line,) = next(run.experiment.predict(params, ["a b"]))
    tokens = [part.rpartition(" ") for part in line.split("\t")]
    assert [token for token, _, _ in tokens] == ["a", "Ġ", "b"]
    ids = run.experiment.masked_tokens("a b")[None]
    x_btd = run.experiment.model.apply({"params": params}, ids, method="encode")
    logits = np.asarray(run.experiment.model.apply({"params": params}, x_btd, method="replaced_logits"))
    shown = [float(p) for _, _, p in tokens]
    np.testing.assert_allclose(shown, 1 / (1 + np.exp(-logits[0, 1:-1])), atol=6e-5)
    with pytest.raises(UserError, match=r"text 1 has 102 tokens; the model reads 64"):
        next(run.experiment.predict(params, ["a" * 100]))
    capfd.readouterr()
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(f'{{"text": "line {i}", "label": "{i % 2}"}}\n' for i in range(60)))
    command = ["--config=configs/finetune_classification.py:tiny", f"--workdir={tmp_path / 'tuned'}"]
    command += [f"--config.initialize_from={tmp_path / 'run'}", f"--config.data.source=jsonl:{labels}"]
    assert launch.main([*command, "--config.optimizer.learning_rate=1e-9"]) == 0
    said = capfd.readouterr().out
    assert "generator" in said and "encoder" in said
    _, tuned_params = api.load(tmp_path / "tuned")
    ours, theirs = tuned_params["encoder"]["embedding"]["table"], params["encoder"]["embedding"]["table"]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert "generator" not in tuned_params and "detect" not in tuned_params
