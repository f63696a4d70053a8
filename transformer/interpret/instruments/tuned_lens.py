"""The tuned lens: the next token by each layer, through a map that is trained for the layer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.interpret.activations import recording
from transformer.interpret.instruments.base import Subject, Table

STEPS, RATE = 200, 1e-3
"""Training, unless --steps says how long."""

STREAM = ("blocks/0/input", "blocks/*")


def translators(layers: int, width: int) -> dict[str, jax.Array]:
    """The identity maps of `layers`: those of the embedding and of all layers but the last."""
    return {"kernel": jnp.zeros((layers, width, width)), "bias": jnp.zeros((layers, width))}


def translated(maps: Any, x_nbtd: jax.Array) -> jax.Array:
    """x + x A_l + b_l for each layer l, (n, b, t, d)."""
    return x_nbtd + jnp.einsum("nbtd,nde->nbte", x_nbtd, maps["kernel"]) + maps["bias"][:, None, None]


def divergences(model: Any, params: Any, maps: Any, x_nbtd: jax.Array, weights_bt: jax.Array) -> jax.Array:
    """(n - 1,): KL(p || q_l) in nats, with p the model's next token, by the last of the streams x, and q_l
    that of an earlier one, by its map and the model's own norm and unembedding; a mean over tokens."""

    def log_p(x_btd: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(model.apply({"params": params}, x_btd, method="logits"))

    last_btv = log_p(x_nbtd[-1])

    def of_layer(x_btd: jax.Array) -> jax.Array:
        kl_bt = jnp.sum(jnp.exp(last_btv) * (last_btv - log_p(x_btd)), axis=-1)
        return jnp.sum(kl_bt * weights_bt) / jnp.maximum(jnp.sum(weights_bt), 1)

    return jax.lax.map(of_layer, translated(maps, x_nbtd[:-1]).astype(x_nbtd.dtype))


def tuned_lens(subject: Subject, steps: int) -> tuple[Any, np.ndarray]:
    """The maps after `steps` steps of Adam on the divergences over the training split, from the identity; and
    (2, n), the divergences on the validation split before and after, the last layer's own, 0, among them.

    Source: Belrose et al. 2023, "Eliciting latent predictions from Transformers with the tuned lens".
    """
    model, params, optimizer = subject.model, subject.params, optax.adam(RATE)

    @jax.jit
    def update(maps: Any, state: Any, x_nbtd: jax.Array, weights_bt: jax.Array) -> Any:
        gradients = jax.grad(lambda maps: divergences(model, params, maps, x_nbtd, weights_bt).sum())(maps)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(maps, updates), state

    record = recording(subject.loss, *STREAM)

    def streams(split: str) -> Any:
        for batch in subject.batches(split):
            values = record(params, batch)[1]
            stacked = jnp.stack([x for path, x in values.items() if "#" not in path])
            yield stacked, jnp.asarray(subject.tokens(batch)[1], jnp.float32)

    train = [*streams("train")] if steps else []
    held_out = [*streams("validation")]
    n, _, _, d = held_out[0][0].shape
    first = maps = translators(n - 1, d)
    state: Any = optimizer.init(maps)
    for step in range(steps):
        maps, state = update(maps, state, *train[step % len(train)])
    measure = jax.jit(lambda maps, x, w: divergences(model, params, maps, x, w) * w.sum())
    count = sum(float(w_bt.sum()) for _, w_bt in held_out)
    results = [sum(np.asarray(measure(m, *part), np.float64) for part in held_out) for m in (first, maps)]
    return maps, np.pad(np.stack(results) / count, ((0, 0), (0, 1)))


def table(subject: Subject) -> Table:
    """The divergences of each layer by the logit lens and by the tuned lens."""
    steps = STEPS if subject.options["steps"] is None else subject.options["steps"]
    _, results_2n = tuned_lens(subject, steps)
    rows = ["embedding", *(f"layer_{i}" for i in range(results_2n.shape[1] - 1))]
    title = f"KL to the model's next token, in nats, on the validation split; {steps} steps of training"
    return Table(title, results_2n.T, rows, ["logit_lens", "tuned_lens"])
