import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import find_experiment
from tests.parameters import random_params, roles_by_name
from tests.runs import write_corpus
from transformer.errors import UserError
from transformer.evaluation.attention_weights import attention_weights
from transformer.training.optim.optimizer import make_optimizer
from workdir.opening import check_config, read_config

GROKKING = "configs/studies/grokking/grokking.py"
INDUCTION = "configs/studies/induction_heads/induction_heads.py"
RECALL = "configs/studies/recall/recall.py"
TRACKING = "configs/studies/state_tracking/state_tracking.py"

pytestmark = pytest.mark.usefixtures("in_root")


def made(config, *overrides):
    frozen = check_config(read_config(f"{config}:tiny"), overrides)
    return find_experiment(frozen.experiment)(frozen)


@pytest.mark.parametrize("config", [GROKKING, INDUCTION, RECALL, TRACKING])
def test_the_terms_against_float64(rng, config):
    experiment = made(config)
    params = random_params(rng, experiment.model, jnp.zeros((1, 1), jnp.int32), scale=0.2)
    batch = next(experiment.train_data().iterate(0))
    terms = jax.jit(experiment.loss, static_argnums=3)(params, batch, jax.random.key(0), False)
    logits_btv = np.asarray(experiment.model.apply({"params": params}, batch["tokens"]), np.float64)
    log_p_btv = logits_btv - np.log(np.exp(logits_btv).sum(-1, keepdims=True))
    nll_bt = -np.take_along_axis(log_p_btv, batch["targets"][..., None], -1)[..., 0]
    right_bt = logits_btv.argmax(-1) == batch["targets"]
    expected = {
        "loss": np.average(nll_bt, weights=batch["weights"]),
        "answer_loss": np.average(nll_bt, weights=batch["answers"]),
        "accuracy": np.average(right_bt, weights=batch["answers"]),
    }
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(terms[name].mean, value, rtol=1e-5)
    assert experiment.weigh(batch)["loss"] == batch["weights"].sum()


def test_a_whole_batch_has_every_training_pair_in_each_step():
    experiment = made(GROKKING)
    loader = experiment.train_data()
    first, second = (loader.batch_at(step) for step in (0, 7))
    np.testing.assert_array_equal(first["tokens"], second["tokens"])
    assert len({tuple(row) for row in first["tokens"]}) == experiment.task.size("train") == 24


@pytest.mark.thorough
def test_every_parameter_decays_where_grokking_asks_for_it(rng):
    experiment = made(GROKKING)
    params = random_params(rng, experiment.model, jnp.zeros((1, 1), jnp.int32))
    config = experiment.config.optimizer
    optimizer, schedule = make_optimizer(config, 2, roles=roles_by_name)
    gradients = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    for update, param in zip(jax.tree.leaves(updates), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(update, -schedule(0) * config.weight_decay * param, rtol=1e-5)


def test_predictions_are_the_most_probable_next_integers(rng):
    experiment = made(INDUCTION)
    params = random_params(rng, experiment.model, jnp.zeros((1, 1), jnp.int32), scale=0.2)
    prompt = [3, 1, 4, 1, 5]
    logits_v = experiment.model.apply({"params": params}, jnp.asarray([prompt]))[0, -1]
    assert [*experiment.predict(params, ["3 1 4 1 5"])] == [[str(int(logits_v.argmax()))]]
    assert not experiment.problem("3 1 4 1 5")


@pytest.mark.parametrize(
    ("config", "text", "why"),
    [
        (GROKKING, "1 x", "is not a list of integers"),
        (GROKKING, "1 2 3", "is not two numbers from 0 to 6"),
        (GROKKING, "1 7", "is not two numbers from 0 to 6"),
        (INDUCTION, "", "is not 1 to 12 numbers from 0 to 7"),
        (INDUCTION, "8", "is not 1 to 12 numbers from 0 to 7"),
    ],
)
def test_what_is_no_prompt_is_refused(config, text, why):
    assert made(config).problem(text) == f"{text!r} {why}"


def test_the_induction_score_against_a_loop(rng):
    experiment = made(INDUCTION)
    params = random_params(rng, experiment.model, jnp.zeros((1, 1), jnp.int32), scale=0.5)
    (evaluator,) = (each for name, each in experiment.evaluators(lambda x: x).items() if name == "induction")
    found, scores = evaluator(params), {}
    assert [*found] == evaluator.names(params) == ["layer_0", "layer_1"]
    for batch in experiment.loader("validation").iterate(0):
        for tokens, answers in zip(batch["tokens"], batch["answers"], strict=True):
            for layer in range(2):
                weights_hts = attention_weights(experiment.model, params, tokens, layer=layer)
                for t in np.flatnonzero(answers):
                    after = [s for s in range(1, t + 1) if tokens[s - 1] == tokens[t]]
                    scores.setdefault(layer, []).append(weights_hts[:, t, after].sum(-1))
    for layer, values in scores.items():
        np.testing.assert_allclose(found[f"layer_{layer}"], np.mean(values, axis=0).max(), rtol=1e-5)


def test_the_induction_score_is_refused_where_nothing_is_an_answer(tmp_path):
    config = read_config("configs/lm.py:tiny")
    overrides = [("evaluate.also", "induction"), ("data.source", write_corpus(tmp_path / "corpus"))]
    frozen = check_config(config, overrides)
    with pytest.raises(UserError, match="induction: language_modeling has no answers"):
        find_experiment("language_modeling")(frozen).evaluators(lambda x: x)
    with pytest.raises(UserError, match="induction: no layer of the model has attention weights"):
        made(INDUCTION, ("model.mixer", "linear")).evaluators(lambda x: x)


def test_rows_that_are_evaluated_must_fit_too():
    with pytest.raises(UserError, match=r"model.max_length: 7; rows of the task have 8 tokens"):
        made(TRACKING, ("model.max_length", "7"))
    assert made(TRACKING, ("model.max_length", "8")).tokens_per_example == 4
