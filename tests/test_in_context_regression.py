import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import find_experiment
from tests.parameters import random_params
from transformer.data.tasks.linear_regression import LinearRegression, least_risk
from transformer.errors import UserError
from workdir.opening import check_config, load, read_config
from workdir.session import train

CONFIG = "configs/studies/in_context_regression/in_context_regression.py"

pytestmark = pytest.mark.usefixtures("in_root")


def made(*overrides):
    frozen = check_config(read_config(f"{CONFIG}:tiny"), overrides)
    return find_experiment(frozen.experiment)(frozen)


def test_rows_are_linear_functions(rng):
    clean, noisy = (LinearRegression(3, 6, noise) for noise in (0.0, 0.5))
    rows = rng.integers(2**31, size=400)
    batch, other = clean.batch("train", rows), noisy.batch("train", rows)
    tokens = np.float64(batch["tokens"])
    np.testing.assert_array_equal(tokens[:, -1, -1], 0)
    for context, query, target in zip(tokens[:, :-1], tokens[:, -1, :-1], batch["targets"], strict=True):
        w, residual, rank, _ = np.linalg.lstsq(context[:, :-1], context[:, -1], rcond=None)
        assert rank == 3 and residual < 1e-8
        np.testing.assert_allclose(query @ w, target, atol=1e-3)
    np.testing.assert_array_equal(other["tokens"][..., :-1], batch["tokens"][..., :-1])
    np.testing.assert_array_equal(other["targets"], batch["targets"])
    noise = (other["tokens"] - batch["tokens"])[:, :-1, -1]
    np.testing.assert_allclose([noise.mean(), noise.std()], [0, 0.5], atol=0.05)
    alone = clean.batch("train", np.array([-1, rows[7]]))
    np.testing.assert_array_equal(alone["tokens"][1], batch["tokens"][7])
    assert [*alone["weights"]] == [0, 1]


@pytest.mark.parametrize(("d", "n", "noise"), [(3, 8, 0.0), (5, 20, 0.0), (4, 3, 1.5)])
def test_the_least_risk_by_monte_carlo(rng, d, n, noise):
    """Of all predictions c x . (1/n) sum_i y_i x_i that with the best c, which is found from the draws."""
    count = 200_000
    x_mnd, w_md = rng.standard_normal((count, n, d)), rng.standard_normal((count, d))
    y_mn = np.einsum("mnd,md->mn", x_mnd, w_md) + noise * rng.standard_normal((count, n))
    query_md = rng.standard_normal((count, d))
    mean_m = np.einsum("md,mnd,mn->m", query_md, x_mnd, y_mn) / n
    target_m = np.sum(query_md * w_md, axis=1)
    best = np.mean(mean_m * target_m) / np.mean(mean_m**2)
    np.testing.assert_allclose(best, n / (n + d + 1 + noise**2), rtol=0.05)
    np.testing.assert_allclose(np.mean((best * mean_m - target_m) ** 2), least_risk(d, n, noise), rtol=0.05)


def test_a_layer_of_linear_attention_reaches_it(rng):
    """The weights of Zhang et al. 2023, theorem 4.1, give the prediction by the closed form."""
    experiment = made()
    d, n = experiment.task.dimension, experiment.task.examples
    shape = jnp.zeros((1, 1, d + 1))
    params = jax.tree.map(jnp.zeros_like, random_params(rng, experiment.model, shape))
    (layer,) = [params["trunk"]["blocks"]["attention"]]
    inputs, last = np.diag([1.0] * d + [0]), np.diag([0.0] * d + [1])
    # The mean is over n + 1 tokens, the query among them, and scores are divided by the root of d + 1.
    factor = (n + 1) * np.sqrt(d + 1) / (n + d + 1)
    kernels = {"query": inputs * factor, "key": inputs, "value": last}
    for name, kernel in kernels.items():
        layer[name]["kernel"] = jnp.asarray(kernel[None, :, None])
    layer["output"]["kernel"] = jnp.asarray(last[None, None])
    batch = experiment.task.batch("train", rng.integers(2**31, size=5000))
    tokens = np.float64(batch["tokens"])
    context, query = tokens[:, :-1], tokens[:, -1, :-1]
    direct = np.einsum("bd,bnd,bn->b", query, context[..., :-1], context[..., -1]) / (n + d + 1)
    found = experiment.model.apply({"params": params}, batch["tokens"])
    np.testing.assert_allclose(found, direct, rtol=1e-4, atol=1e-3)
    terms = experiment.loss(params, batch, jax.random.key(0), False)
    for term in terms.values():
        np.testing.assert_allclose(term.mean, np.mean((direct - batch["targets"]) ** 2), rtol=1e-4)


@pytest.mark.thorough
def test_training_approaches_the_closed_form(tmp_path):
    overrides = {
        "data.examples": "20",
        "data.evaluated_rows": "4000",
        "train.steps": "300",
        "train.batch_size": "512",
        "evaluate.batch_size": "2000",
        "optimizer.warmup_steps": "20",
    }
    assert train(str(tmp_path / "run"), [*overrides.items()], f"{CONFIG}:tiny") == "finished"
    run, params = load(tmp_path / "run")
    with run.placed():
        measured = run.evaluators()["eval"](params)
    np.testing.assert_allclose(measured["closed_form"], least_risk(5, 20), rtol=0.2)
    np.testing.assert_allclose(measured["loss"], measured["closed_form"], rtol=0.05)


@pytest.mark.thorough
def test_a_softmax_transformer_with_projections_learns_too(rng):
    experiment = made(
        ("model.projections", "true"),
        ("model.mixer", "multi_head"),
        ("model.d_model", "16"),
        ("model.norm", "layer"),
        ("model.feed_forward", "gelu"),
        ("model.num_heads", "2"),
    )
    params = experiment.init(jax.random.key(0))
    batch = next(experiment.train_data().iterate(0))
    value, gradient = jax.value_and_grad(
        lambda p: experiment.loss(p, batch, jax.random.key(0), True)["loss"].mean
    )(params)
    assert np.isfinite(value) and all(
        np.abs(g).max() > 0 for g in jax.tree.leaves(gradient["trunk"]["blocks"]["attention"]["value"])
    )


def test_predictions_read_examples_and_a_query(rng):
    experiment = made()
    params = random_params(rng, experiment.model, jnp.zeros((1, 1, 6)))
    rows = rng.normal(size=(4, 6)).round(2)
    text = "; ".join(" ".join(map(str, row)) for row in rows[:-1]) + "; " + " ".join(map(str, rows[-1, :-1]))
    rows[-1, -1] = 0
    y = experiment.model.apply({"params": params}, jnp.asarray(rows[None], jnp.float32))
    assert [*experiment.predict(params, [text])] == [[f"{float(y[0]):.4f}"]]
    assert not experiment.problem(text)
    assert experiment.problem("1 x; 2") == "'1 x; 2' is not a list of numbers"
    wrong = "'1 2; 1' is not examples of 6 numbers and a query of 5, separated by ;"
    assert experiment.problem("1 2; 1") == wrong
    for number in ("nan", "-inf", "1e39"):
        assert "has a number that is not finite" in experiment.problem(f"0 0 0 0 0 {number}; 1 2 3 4 5")


def test_no_more_examples_are_read_than_the_model_has_positions_for():
    experiment = made(("model.position", "learned"), ("model.max_length", "5"))
    examples, query = ["0 0 0 0 0 0; "] * 5, "0 0 0 0 0"
    assert not experiment.problem("".join(examples[1:]) + query)
    why = "is 6 vectors with the query; expected at most 5 (model.max_length)"
    assert experiment.problem("".join(examples) + query).endswith(why)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.d_model", "8", "config.model.d_model: 8 without projections; expected data.dimension + 1, 6"),
        ("model.max_length", "3", "config.model.max_length: 3; the examples and the query are 5"),
        ("data.noise", "-1.0", "config.data.noise: -1.0; expected 0 or more"),
    ],
)
def test_impossible_sizes_are_refused(key, value, message):
    with pytest.raises(UserError) as error:
        made((key, value))
    assert str(error.value) == message
