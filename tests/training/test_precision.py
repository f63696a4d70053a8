"""Training in bfloat16 beside float32, from the same parameters on the same batches."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from transformer.models.decoder import DecoderConfig
from transformer.training.losses.token_losses import token_loss
from transformer.training.metrics import Sum
from transformer.training.state import State
from transformer.training.step import make_train_step

VOCAB, ROWS, T, STEPS, RATE = 23, 8, 16, 20, 0.3
CONFIG = DecoderConfig(
    norm="layer", d_model=32, num_layers=2, num_heads=2, d_ff=64, position="rope", vocab_multiple=1
)

UNIT = float(jnp.finfo(jnp.bfloat16).eps) / 2
"""2^-8: bfloat16 keeps 8 significant bits, so that rounding changes a number by at most this part of it."""

FORWARD = CONFIG.num_layers * (2 + 2 + 2 + 6) + 3
"""How often a number is rounded on its way through the model: in each block after both norms, both sums with
the stream and both of their products, and as queries, keys, scores, weights, values and hidden units; besides
after the embedding, after the last norm, and in the table that unembeds."""


@dataclasses.dataclass(frozen=True)
class Objective:
    dtype: str

    @functools.cached_property
    def model(self):
        return dataclasses.replace(CONFIG, dtype=self.dtype).build(VOCAB)

    def loss(self, params, batch, rng, train):
        logits = self.model.apply({"params": params}, batch["tokens"])
        return {"loss": Sum.of(token_loss(logits, batch["targets"], VOCAB)[0])}

    def weigh(self, batch):
        return {"loss": jnp.float32(batch["tokens"].size)}


@pytest.fixture(scope="module")
def texts():
    """Words of a text that goes round in circles, the same for both: there is something to learn."""
    starts = np.random.randint(0, VOCAB, (STEPS, ROWS, 1))
    tokens = (starts + 3 * np.arange(T + 1)) % VOCAB
    return [{"tokens": rows[:, :-1], "targets": rows[:, 1:]} for rows in tokens.astype(np.int32)]


@pytest.fixture(scope="module")
def trained(texts):
    """By type: the losses, the first step's change of the parameters, and the state at the end."""
    found, optimizer = {}, optax.sgd(RATE)
    first = jax.jit(Objective("float32").model.init)(jax.random.key(0), texts[0]["tokens"])["params"]
    for dtype in ("float32", "bfloat16"):
        step = jax.jit(make_train_step(Objective(dtype), optimizer, seed=0))
        state, losses, moved = State.create(nn.meta.unbox(first), optimizer, False), [], None
        for batch in texts:
            before = state.params
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss"].mean))
            if moved is None:
                moved = jax.tree.map(lambda a, b: np.asarray(a - b) / RATE, before, state.params)
        found[dtype] = losses, moved, state
    return found


@pytest.mark.thorough
def test_parameters_and_their_gradients_stay_in_float32(trained):
    _, moved, state = trained["bfloat16"]
    for leaf in jax.tree.leaves((moved, state.params, state.opt_state)):
        assert leaf.dtype == jnp.float32
    rounded = jax.tree.map(lambda p: p.astype(jnp.bfloat16).astype(jnp.float32), state.params)
    same = jax.tree.map(lambda a, b: np.mean(a == b), rounded, state.params)
    assert max(jax.tree.leaves(same)) < 0.1  # in earnest: they hold what bfloat16 cannot


GRADIENT = np.sqrt(3 * FORWARD) * UNIT
"""n roundings, as often up as down, change a number by about sqrt(n) units (Higham and Mary 2019); a gradient
has the forward pass behind it, and twice as many products on the way back."""


@pytest.mark.thorough
def test_gradients_differ_by_roundings(trained):
    exact, rounded = (trained[dtype][1] for dtype in ("float32", "bfloat16"))
    error = optax.tree.norm(jax.tree.map(np.subtract, rounded, exact)) / optax.tree.norm(exact)
    assert UNIT / 4 < error < GRADIENT


@pytest.mark.thorough
def test_the_curve_in_bfloat16_is_that_in_float32_within_rounding(trained):
    """A loss log z - l_y changes by at most twice what its logits do, of FORWARD roundings each; steps that
    are off by a part of their length descend so much less, or more, of the way."""
    exact, rounded = (np.array(trained[dtype][0]) for dtype in ("float32", "bfloat16"))
    bound = 2 * np.sqrt(FORWARD) * UNIT + GRADIENT * (exact[0] - exact)
    assert exact[-1] < exact[0] - 10 * bound[-1]  # it learned, by much more than that
    assert (np.abs(rounded - exact) < bound).all() and (rounded != exact).any()
