import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from tests.parameters import random_params, roles_by_name
from tests.training import toy
from transformer.errors import UserError
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.transformer_xl import Memory, TransformerXLConfig
from transformer.training import parallel
from transformer.training.losses.token_losses import token_loss
from transformer.training.metrics import Sum
from transformer.training.optim.optax_optimizers import own_average
from transformer.training.optim.optimizer import OptimizerConfig, make_optimizer
from transformer.training.state import State
from transformer.training.step import make_eval_step, make_train_step, split_rows

VOCAB = 23
MODEL = Decoder(DecoderConfig(d_model=16, num_layers=2, num_heads=2, d_ff=32), VOCAB)


class TwoLosses:
    """A language model with a second loss over other tokens: two denominators in one objective."""

    model = MODEL

    def init(self, rng):
        return MODEL.init(rng, jnp.zeros((1, 1), jnp.int32))["params"]

    def loss(self, params, batch, rng, train):
        logits = MODEL.apply({"params": params}, batch["tokens"])
        nll, _, log_z = token_loss(logits, batch["targets"], VOCAB)
        noise = 1.0 + batch["poison"][:, None]
        return {"loss": Sum.of(nll * noise, batch["weights"]), "other": Sum.of(log_z**2, batch["others"])}

    def weigh(self, batch):
        return {"loss": jnp.sum(batch["weights"]), "other": jnp.sum(batch["others"])}


EXPERIMENT = TwoLosses()


def make_batch(rng, rows=8, t=6, poison=0.0):
    """Rows of very unequal weight: a mean of the microbatches' means would be far off."""
    weights = (np.arange(t) < rng.integers(0, t + 1, (rows, 1))).astype(np.float32)
    others = (rng.random((rows, t)) < 0.2).astype(np.float32)
    weights[0], others[0] = 1, 1
    return {
        "tokens": rng.integers(0, VOCAB, (rows, t)).astype(np.int32),
        "targets": rng.integers(0, VOCAB, (rows, t)).astype(np.int32),
        "weights": weights,
        "others": others,
        "poison": np.full(rows, poison, np.float32),
    }


def make_state(optimizer, ema=False):
    params = nn.meta.unbox(jax.jit(EXPERIMENT.init)(jax.random.key(0)))
    return State.create(params, optimizer, ema)


def assert_close(a, b, atol):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol, rtol=1e-6), a, b)


@pytest.mark.thorough
@pytest.mark.parametrize("microbatches", [2, 4, 8])
def test_microbatches_change_nothing(rng, microbatches):
    optimizer, batch = optax.sgd(1.0), make_batch(rng)
    state = make_state(optimizer)
    whole, metrics = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0))(state, batch)
    step = make_train_step(EXPERIMENT, optimizer, seed=0, microbatches=microbatches)
    parts, part_metrics = jax.jit(step)(state, batch)
    assert_close(parts.params, whole.params, 1e-6)
    assert_close(part_metrics, metrics, 1e-4)


def test_the_gradient_is_that_of_the_objective(rng):
    """With plain gradient descent of rate 1 the parameters move by the gradient of
    sum_i w_i l_i / sum_i w_i, term by term, written out here once more."""
    batch, optimizer = make_batch(rng), optax.sgd(1.0)
    state = make_state(optimizer)

    def objective(params):
        log_p = jax.nn.log_softmax(MODEL.apply({"params": params}, batch["tokens"])[..., :VOCAB])
        nll = -jnp.take_along_axis(log_p, batch["targets"][..., None], -1)[..., 0]
        log_z = jax.nn.logsumexp(MODEL.apply({"params": params}, batch["tokens"])[..., :VOCAB], axis=-1)
        return jnp.average(nll, weights=batch["weights"]) + jnp.average(log_z**2, weights=batch["others"])

    expected = jax.jit(jax.grad(objective))(state.params)
    new, metrics = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0, microbatches=2))(state, batch)
    assert_close(jax.tree.map(jnp.subtract, state.params, new.params), expected, 1e-5)
    np.testing.assert_allclose(metrics["gradient_norm"].mean, optax.tree.norm(expected), rtol=1e-4)


class Reporting(TwoLosses):
    """Has a term that it does not optimise, made by `term` from the mean of the logits and the accuracy."""

    def __init__(self, term):
        self.term = term

    def loss(self, params, batch, rng, train):
        terms = super().loss(params, batch, rng, train)
        logits = MODEL.apply({"params": params}, batch["tokens"])
        right = jnp.argmax(logits, axis=-1) == batch["targets"]
        return terms | {"report": self.term(Sum.of(logits, 1.0), Sum.of(right, batch["weights"]))}


@pytest.mark.parametrize("microbatches", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_term_with_a_gradient_is_optimised_or_refused(rng, microbatches):
    optimizer, batch = optax.sgd(1.0), make_batch(rng)
    state = make_state(optimizer)

    def trained(term):
        step = make_train_step(Reporting(term), optimizer, seed=0, microbatches=microbatches)
        return jax.jit(step)(state, batch)

    with pytest.raises(UserError, match=r"^the term 'report' of `loss` has a gradient, but `weigh` does not"):
        trained(lambda mean, accuracy: mean)
    plain = make_train_step(EXPERIMENT, optimizer, seed=0, microbatches=microbatches)
    expected, _ = jax.jit(plain)(state, batch)
    for term in (lambda mean, accuracy: accuracy, lambda mean, accuracy: jax.lax.stop_gradient(mean)):
        new, metrics = trained(term)
        assert_close(new.params, expected.params, 0)
        assert metrics["report"].weight > 0


@pytest.mark.parametrize("added", [{}, {"late": 1.0}])
def test_a_term_that_weigh_names_is_a_sum_of_the_loss(rng, added):
    class Late(TwoLosses):
        def loss(self, *inputs):
            return super().loss(*inputs) | added

        def weigh(self, batch):
            return super().weigh(batch) | {"late": jnp.float32(1)}

    optimizer = optax.sgd(1.0)
    step = make_train_step(Late(), optimizer, seed=0)
    message = (
        "^`weigh` names the term 'late', and `loss` returns no Sum of that name; Sums there: loss, other: "
    )
    with pytest.raises(UserError, match=message):
        step(make_state(optimizer), make_batch(rng))


@pytest.mark.thorough
def test_clipping_bounds_the_step(rng):
    optimizer, batch = optax.sgd(1.0), make_batch(rng)
    state = make_state(optimizer)
    new, metrics = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0, clip_norm=0.01))(state, batch)
    assert metrics["gradient_norm"].mean > 0.01
    moved = optax.tree.norm(jax.tree.map(jnp.subtract, new.params, state.params))
    np.testing.assert_allclose(moved, 0.01, rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_step_that_is_not_finite_is_skipped_and_counted(rng, poison, microbatches):
    optimizer = optax.adam(0.1)
    state = make_state(optimizer, ema=True)
    step = jax.jit(
        make_train_step(
            EXPERIMENT, optimizer, seed=0, ema_decay=0.9, microbatches=microbatches, clip_norm=1.0
        )
    )
    state, _ = step(state, make_batch(rng))
    skipped, metrics = step(state, make_batch(rng, poison=poison))
    assert_close(
        (skipped.params, skipped.opt_state, skipped.ema), (state.params, state.opt_state, state.ema), 0
    )
    assert (int(skipped.step), int(skipped.skipped), float(metrics["skipped_steps"].mean)) == (2, 1, 1.0)
    after, metrics = step(skipped, make_batch(rng))
    assert int(after.skipped) == 1 and float(metrics["skipped_steps"].mean) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))


@pytest.mark.thorough
def test_a_skipped_step_uses_up_its_place_in_the_schedule(rng):
    """The decay ends with the last step, whose rate is 0, and not with the last update."""
    config = OptimizerConfig(
        name="sgd", learning_rate=1.0, schedule="wsd", decay_steps=2, warmup_steps=0, weight_decay=0.0
    )
    optimizer, _ = make_optimizer(config, 4)
    state, moved = make_state(optimizer), []
    step = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0))
    for number in range(4):
        new, metrics = step(state, make_batch(rng, poison=np.nan if number == 1 else 0.0))
        change = optax.tree.norm(jax.tree.map(jnp.subtract, new.params, state.params))
        moved.append(float(change / metrics["gradient_norm"].mean) if number != 1 else 0.0)
        state = new
    np.testing.assert_allclose(moved, [1, 0, 0.5, 0], rtol=1e-3)


class Recurrent:
    """A model with memory, whose loss may be made NaN without its memory being so."""

    model = TransformerXLConfig(d_model=16, num_layers=2, num_heads=2, d_ff=24, memory_length=5).build(VOCAB)

    def initial_carry(self):
        return Memory.empty(self.model.config, 4, self.model.config.memory_length)

    def loss_and_carry(self, params, batch, carry, rng, train):
        x_btd, carry = self.model.apply(
            {"params": params}, batch["tokens"], carry, segments_bt=batch["segments"], method="recur"
        )
        return {"loss": Sum.of(jnp.mean(x_btd**3, (1, 2)) * (1 + batch["poison"]))}, carry

    def weigh(self, batch):
        return {"loss": jnp.float32(4)}


@pytest.mark.parametrize("microbatches", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_the_memory_of_a_skipped_step_is_of_the_text_that_was_read(rng, microbatches):
    """Rows whose memory is not finite start again; without that they would stay so for ever."""
    experiment, optimizer = Recurrent(), optax.sgd(0.1)
    first, second = ({"tokens": rng.integers(1, VOCAB, (4, 3)), "poison": np.zeros(4)} for _ in range(2))
    first, second = ({**each, "segments": np.ones((4, 3), int)} for each in (first, second))
    params = random_params(rng, experiment.model, jnp.zeros((1, 1), jnp.int32))
    state = State.create(params, optimizer, False, experiment.initial_carry())
    step = jax.jit(make_train_step(experiment, optimizer, seed=0, microbatches=microbatches))
    state, _ = step(state, first)
    skipped, _ = step(state, {**second, "poison": np.array([0, np.nan, 0, 0])})
    assert int(skipped.skipped) == 1
    assert_close(skipped.params, state.params, 0)
    assert_close(skipped.carry, step(state, second)[0].carry, 1e-6)
    second["tokens"][2, 1] = 0
    broken = state.replace(params=jax.tree.map(jnp.copy, state.params))
    broken.params["embedding"]["table"] = state.params["embedding"]["table"].at[0].set(jnp.inf)
    cleared, _ = step(broken, second)
    rows = jax.tree.map(lambda x: np.abs(np.asarray(x)).reshape(4, -1).max(axis=1), cleared.carry)
    for each in jax.tree.leaves(rows):
        assert np.isfinite(each).all() and each[2] == 0 and (np.delete(each, 2) > 0).all()


@pytest.mark.thorough
def test_the_moving_average(rng):
    optimizer, batch = optax.sgd(0.5), make_batch(rng)
    state = make_state(optimizer, ema=True)
    new, _ = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0, ema_decay=0.75))(state, batch)
    assert_close(new.ema, new.params, 1e-7)
    assert new.eval_params is new.ema and state.replace(ema=None).eval_params is state.params


@pytest.mark.thorough
@pytest.mark.parametrize("decay", [0.75, 0.9999])
def test_the_moving_average_has_nothing_of_the_initial_parameters(rng, decay):
    """Against the weighted mean of the parameters after each update in float64; a skipped step is none."""
    optimizer = optax.sgd(0.5)
    state, seen = make_state(optimizer, ema=True), []
    step = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0, ema_decay=decay))
    for number in range(6):
        state, _ = step(state, make_batch(rng, poison=np.nan if number in (0, 3) else 0.0))
        if number not in (0, 3):
            seen.append(jax.tree.map(lambda x: np.asarray(x, np.float64), state.params))
    weights = decay ** np.arange(len(seen))[::-1] * (1 - decay)
    weights /= 1 - decay ** len(seen)
    assert weights.sum() == pytest.approx(1)
    wanted = jax.tree.map(lambda *each: sum(w * x for w, x in zip(weights, each, strict=True)), *seen)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), state.ema, wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["contrib.schedule_free_sgd", "contrib.schedule_free_adamw"])
def test_schedule_free_optimizers_are_evaluated_at_their_own_average(rng, name):
    """x_t, the mean of the fast iterates z_1 ... z_t (all of one rate), where y = b1 x + (1 - b1) z."""
    config = OptimizerConfig(
        name=name, learning_rate=0.05, schedule="constant", warmup_steps=0, weight_decay=0.0
    )
    assert config.averages_itself
    optimizer, _ = make_optimizer(config, 10, roles=roles_by_name)
    state, fast = make_state(optimizer, ema=True), []
    step = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0, own_average=own_average))
    for _ in range(5):
        state, _ = step(state, make_batch(rng))
        (z,) = [node.z for node in jax.tree.leaves(state.opt_state, is_leaf=has_z) if has_z(node)]
        fast.append(jax.tree.map(lambda x: np.asarray(x, np.float64), z))
    mean = jax.tree.map(lambda *each: np.mean(each, axis=0), *fast)
    assert_close(state.eval_params, mean, 2e-5)
    blend = jax.tree.map(lambda x, z: 0.9 * x + 0.1 * z, mean, fast[-1])
    assert_close(state.params, blend, 2e-5)
    far = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), state.params, mean)
    assert max(jax.tree.leaves(far)) > 1e-3  # or the test would show nothing


def has_z(node) -> bool:
    return hasattr(node, "z") and hasattr(node, "weight_sum")


@pytest.mark.thorough
def test_evaluation_weighs_tokens_not_batches(rng):
    params = make_state(optax.sgd(1.0)).params
    step, batch = jax.jit(make_eval_step(EXPERIMENT)), make_batch(rng)
    halves = [{name: rows[part] for name, rows in batch.items()} for part in (slice(0, 3), slice(3, 8))]
    first, second = (step(params, half) for half in halves)
    whole = step(params, batch)
    for name in whole:
        np.testing.assert_allclose((first[name] + second[name]).mean, whole[name].mean, rtol=1e-5)


def test_split_rows_is_a_partition(rng):
    batch = make_batch(rng)
    parts = split_rows(batch, 4)
    assert parts["tokens"].shape == (4, 2, 6)
    rows = sorted(map(tuple, np.asarray(parts["tokens"]).reshape(8, 6)))
    assert rows == sorted(map(tuple, batch["tokens"]))


def curve(batches, sizes, devices, microbatches=1):
    """The losses of training on the batches over a mesh, and the state at the end."""
    optimizer = optax.sgd(0.1)
    mesh = parallel.make_mesh(parallel.MeshConfig(*sizes), devices)
    rules = parallel.RULES["default"]
    step = make_train_step(EXPERIMENT, optimizer, seed=0, microbatches=microbatches)
    with parallel.placed(mesh, rules):
        boxed = jax.eval_shape(lambda: State.create(EXPERIMENT.init(jax.random.key(0)), optimizer, False))
        shardings = parallel.state_shardings(boxed, mesh, rules)
        state = jax.jit(lambda: make_state(optimizer), out_shardings=shardings)()
        step, losses = jax.jit(step, donate_argnums=0, out_shardings=(shardings, None)), []
        for batch in batches:
            state, metrics = step(state, parallel.put_batch(batch, parallel.batch_sharding(mesh)))
            losses.append(float(metrics["loss"].mean))
    return losses, state


@pytest.fixture(scope="module")
def alone():
    """Batches, and the losses of one device."""
    rng = np.random.default_rng(np.random.randint(1 << 30))
    batches = [make_batch(rng, rows=16) for _ in range(4)]
    return batches, curve(batches, (1, 1, 1), jax.devices()[:1])[0]


@pytest.mark.parametrize("mesh", [
    pytest.param((8, 1, 1), marks=pytest.mark.thorough),
    pytest.param((1, 8, 1), marks=pytest.mark.thorough),
    pytest.param((4, 1, 2), marks=pytest.mark.thorough),
    (2, 2, 2),
])  # fmt: skip
def test_eight_devices_train_as_one_does(alone, mesh):
    """Data, fully sharded and tensor parallel: the same loss curve, with microbatches too.

    Devices add up the 96 tokens of a batch in another order: a mean may differ by 96 units of rounding, which
    gradient descent carries on as it is. Adam would make whole steps of a gradient near zero.
    """
    batches, expected = alone
    rounding = 16 * 6 * jnp.finfo(jnp.float32).eps / 2
    assert max(expected) - min(expected) > 1000 * rounding  # a step more or less would show
    together, state = curve(batches, mesh, jax.devices())
    np.testing.assert_allclose(together, expected, rtol=rounding)
    assert len(state.params["embedding"]["table"].sharding.device_set) == 8
    accumulated, _ = curve(batches, mesh, jax.devices(), microbatches=2)
    np.testing.assert_allclose(accumulated, expected, rtol=rounding)


@pytest.mark.thorough
def test_a_gradient_within_the_bound_is_not_scaled(rng):
    optimizer, batch = optax.sgd(0.1), make_batch(rng)
    state = make_state(optimizer)
    free, metrics = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0))(state, batch)
    bound = 2 * float(metrics["gradient_norm"].mean)
    bounded, _ = jax.jit(make_train_step(EXPERIMENT, optimizer, seed=0, clip_norm=bound))(state, batch)
    assert_close(bounded.params, free.params, 1e-7)


def test_each_step_draws_other_noise():
    """Two steps that differ in nothing but their number."""
    _, _, init, step = toy.setup(optimizer=optax.sgd(0.1))
    batch = toy.Loader().batch_at(0)
    losses = [float(step(init().replace(step=jnp.int32(n)), batch)[1]["loss"].mean) for n in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
