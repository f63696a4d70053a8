import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from transformer.errors import UserError
from transformer.models.word_embedding import SkipGram, SkipGramConfig
from transformer.training.losses.negative_sampling import NegativeSamplingConfig, negative_sampling, pairs


def batch_of(rng, b=3, t=9, k=4, v=7) -> dict[str, np.ndarray]:
    """Rows as `SkipGrams` makes them: segments one after another, then nothing."""
    segments = np.sort(rng.integers(1, 4, (b, t)), axis=1)
    segments[np.arange(t) >= rng.integers(0, t + 1, b)[:, None]] = 0
    sizes = {"tokens": (b, t), "reach": (b, t), "noise": (b, k)}
    batch = {name: rng.integers(1 if name == "reach" else 0, v, size) for name, size in sizes.items()}
    return {name: values.astype(np.int32) for name, values in (batch | {"segments": segments}).items()}


def loss_of(model, params, batch, negatives):
    near, noise = model.apply({"params": params}, batch["tokens"], batch["noise"])
    return negative_sampling(near, noise, pairs(batch["segments"], batch["reach"]), negatives)


def by_hand(tables, batch, negatives) -> tuple[float, int]:
    """The sum over pairs in float64, one after another, and how many there are."""
    v, u = tables
    total, count = 0.0, 0
    for row in range(len(batch["tokens"])):
        words, segments, reach = (batch[name][row] for name in ("tokens", "segments", "reach"))
        for c in range(len(words)):
            for o in range(max(0, c - reach[c]), min(len(words), c + reach[c] + 1)):
                if o == c or not segments[c] or segments[c] != segments[o]:
                    continue
                noise = [np.log1p(np.exp(u[n] @ v[words[c]])) for n in batch["noise"][row]]
                total += np.log1p(np.exp(-u[words[o]] @ v[words[c]])) + negatives * np.mean(noise)
                count += 1
    return total, count


def made(rng, v=7, d=3, scale=1.0):
    model = SkipGram(SkipGramConfig(d_model=d, vocab_multiple=1), v)
    params = nn.meta.unbox(
        model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32))["params"]
    )
    return model, jax.tree.map(lambda x: jnp.asarray(rng.normal(0, scale, x.shape), jnp.float32), params)


def tables_of(params) -> list[np.ndarray]:
    return [np.asarray(params[name]["table"], np.float64) for name in ("embedding", "context")]


def test_the_loss_is_the_sum_over_pairs_one_by_one(rng):
    model, params = made(rng)
    found = jax.jit(lambda params, batch: loss_of(model, params, batch, 3.5))
    for _ in range(5):
        batch = batch_of(rng)
        total, count = by_hand(tables_of(params), batch, 3.5)
        part = found(params, batch)
        assert float(part.weight) == count
        assert float(part.total) == pytest.approx(total, rel=1e-5, abs=1e-6)


def test_gradients_are_numerical_ones(rng):
    model, params = made(rng)
    batch = batch_of(rng)
    gradients = jax.jit(jax.grad(lambda params: loss_of(model, params, batch, 2.0).total))(params)
    before = tables_of(params)
    for table, name in enumerate(("embedding", "context")):
        for _ in range(12):
            place = tuple(rng.integers(before[table].shape))
            sides = []
            for step in (1e-5, -1e-5):
                moved = [each.copy() for each in before]
                moved[table][place] += step
                sides.append(by_hand(moved, batch, 2.0)[0])
            numerical = (sides[0] - sides[1]) / 2e-5
            assert float(gradients[name]["table"][place]) == pytest.approx(numerical, rel=1e-3, abs=1e-3)


def test_hugely_wrong_scores_are_finite(rng):
    model, params = made(rng, scale=100.0)
    batch = batch_of(rng)
    value, gradients = jax.jit(jax.value_and_grad(lambda p: loss_of(model, p, batch, 5.0).total))(params)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradients)))


def test_the_best_scores_are_shifted_pointwise_mutual_information(rng):
    """u_o . v_c = log(p(o | c) / (k p_noise(o))), d = v (Levy and Goldberg 2014, section 3.1)."""
    v, k = 4, 2.0
    model, params = made(rng, v=v, d=v, scale=0.5)
    words = np.concatenate([rng.permutation(v), rng.integers(0, v, 26)])
    counts = np.array([3, 1, 2, 2])
    batch = {
        "tokens": words[None].astype(np.int32),
        "segments": np.ones((1, 30), np.int32),
        "reach": np.full((1, 30), 29, np.int32),  # each word with each other one
        "noise": np.repeat(np.arange(v), counts)[None].astype(np.int32),
    }
    optimizer = optax.adam(0.03)

    @jax.jit
    def fit(params):
        def step(_, carry):
            params, state = carry
            gradients = jax.grad(lambda p: loss_of(model, p, batch, k).mean)(params)
            updates, state = optimizer.update(gradients, state)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, 3000, step, (params, optimizer.init(params)))[0]

    v_vd, u_vd = tables_of(fit(params))
    together = np.zeros((v, v))
    for c in range(30):
        for o in range(30):
            together[words[c], words[o]] += c != o
    for c, o in zip(*np.nonzero(together), strict=True):
        wanted = np.log(together[c, o] / together[c].sum() / (k * counts[o] / counts.sum()))
        assert u_vd[o] @ v_vd[c] == pytest.approx(wanted, abs=0.02)


def test_impossible_keys():
    with pytest.raises(UserError, match=r"negatives: 0.0; expected more than 0"):
        NegativeSamplingConfig(negatives=0.0)
