"""A sparse autoencoder: activations as sums of few of many learned directions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer.errors import UserError
from transformer.interpret.instruments.base import Subject, Table
from transformer.interpret.instruments.neurons import TOPS, Contexts, table_of, top_activations
from transformer.interpret.interventions import Edit, Interventions

EXPANSION, ACTIVE, STEPS, ROWS, RATE = 4, 8, 1000, 1024, 1e-3
"""Features for each dimension; those that are active at once; and steps of Adam, their tokens and rate."""

Array = jax.Array | np.ndarray
Autoencoder = dict[str, jax.Array]


def encode(sae: Autoencoder, x_md: Array, active: int = ACTIVE) -> jax.Array:
    """f = TopK(ReLU((x - b_d) W_e + b_e)), (..., d) -> (..., f): all but the `active` largest are 0."""
    all_mf = jax.nn.relu((x_md - sae["bias"]) @ sae["encoder"] + sae["threshold"])
    least_m1 = jax.lax.top_k(all_mf, active)[0][..., -1:]
    return jnp.where(all_mf >= least_m1, all_mf, 0)


def decode(sae: Autoencoder, features_mf: Array) -> jax.Array:
    """f W_d + b_d, (..., f) -> (..., d); the rows of W_d have the length 1."""
    return jnp.asarray(features_mf) @ sae["decoder"] + sae["bias"]


def initial(x_md: np.ndarray, features: int, seed: int = 0) -> Autoencoder:
    """Random directions, of which the encoder is the transpose, around the mean of the activations."""
    decoder_fd = np.random.default_rng(seed).normal(size=(features, x_md.shape[1])).astype(np.float32)
    decoder_fd /= np.linalg.norm(decoder_fd, axis=1, keepdims=True)
    arrays = {"encoder": decoder_fd.T, "threshold": np.zeros(features, np.float32), "decoder": decoder_fd}
    return jax.tree.map(jnp.asarray, arrays | {"bias": x_md.mean(axis=0)})


def trained(x_md: np.ndarray, features: int, steps: int, active: int = ACTIVE, seed: int = 0) -> Autoencoder:
    """The autoencoder after `steps` steps of Adam on the mean of |x - decode(encode(x))|^2 over random rows.

    Source: Gao et al. 2024, "Scaling and evaluating sparse autoencoders", section 2.3; Bricken et al. 2023.
    """
    sae, optimizer, rng = initial(x_md, features, seed), optax.adam(RATE), np.random.default_rng(seed)
    scale = float(x_md.std()) or 1.0  # so that one rate serves activations of any size

    def loss(sae: Autoencoder, x_md: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(x_md - decode(sae, encode(sae, x_md, active))))

    @jax.jit
    def update(sae: Autoencoder, state: Any, x_md: jax.Array) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(sae, x_md), state)
        sae = optax.apply_updates(sae, updates)
        decoder_fd = sae["decoder"]
        return sae | {"decoder": decoder_fd / jnp.linalg.norm(decoder_fd, axis=1, keepdims=True)}, state

    sae = sae | {"bias": sae["bias"] / scale}
    state: Any = optimizer.init(sae)
    for _ in range(steps):
        sae, state = update(sae, state, x_md[rng.integers(len(x_md), size=min(ROWS, len(x_md)))] / scale)
    return sae | {name: sae[name] * scale for name in ("bias", "threshold")}


def site_of(subject: Subject, pattern: str) -> str:
    """The only path of a pattern; "": the output of the first block, of several models that of the last.

    Raises:
      UserError: a pattern fits several paths.
    """
    values = next(subject.recorded("validation", pattern or "**blocks/0")).values
    paths = [path for path in values if "#" not in path]
    if pattern and len(paths) > 1:
        raise UserError(f"--site: {pattern!r} fits {', '.join(paths)}; expected one path")
    return paths[-1]


def mean_loss(subject: Subject, *edits: Edit) -> float:
    """The mean loss of the validation split with edits. Raises `UserError` if it has no targets."""
    loss = jax.jit(lambda params, batch: subject.loss(params, batch)["loss"])
    with Interventions(*edits):
        terms = [loss(subject.params, batch) for batch in subject.batches("validation")]
    if not (weight := sum(float(term.weight) for term in terms)):
        raise UserError("--batches: the batches have no targets; expected more of them")
    return sum(float(term.total) for term in terms) / weight


def table(subject: Subject) -> Table:
    """Features with the largest peaks, and the quality of the reconstruction, on the validation split:

    1 - sum |x - y|^2 / sum |x - mean|^2, the variance explained; L0, the features that are active at a token;
    and (L(0) - L(y)) / (L(0) - L(x)), the loss recovered, where L(z) is the loss of the model with z at the
    place of x."""
    site = site_of(subject, subject.options["site"] or "")
    parts = [Contexts(subject).valid(batch, *batch.values) for batch in subject.recorded("train", site)]
    x_md = np.concatenate(parts)
    steps = subject.options["steps"] or STEPS
    sae = trained(x_md, EXPANSION * x_md.shape[1], steps)
    contexts, features, errors = Contexts(subject), [], np.zeros(2)
    mean_d = x_md.mean(axis=0)
    for batch in subject.recorded("validation", site):
        held_out_md = contexts.valid(batch, *batch.values)
        features.append(np.asarray(encode(sae, held_out_md)))
        error_md = held_out_md - np.asarray(decode(sae, features[-1]))
        errors += np.sum(error_md**2, dtype=np.float64), np.sum((held_out_md - mean_d) ** 2, dtype=np.float64)
    tops = top_activations(features, TOPS)

    def rebuilt(path: str, x: jax.Array, _: Any) -> jax.Array:
        flat_btd = x.reshape(*x.shape[:2], -1)
        return decode(sae, encode(sae, flat_btd)).reshape(x.shape)

    whole, zero, ours = (
        mean_loss(subject, *edits)
        for edits in ((), (Edit(site, lambda path, x, _: 0.0),), (Edit(site, rebuilt),))
    )
    if zero == whole:
        raise UserError(f"--site: the loss does not depend on {site}; expected a path that it does")
    units = [f"feature_{i}" for i in range(len(tops.mean_f))]
    table = table_of(f"the tokens at which features of {site} are largest", tops, units, contexts)
    dead = np.mean(tops.active_f == 0)
    quality = [
        f"variance explained {1 - errors[0] / errors[1]:.4f}, L0 {tops.active_f.sum():.2f} of {len(units)}, "
        f"dead features {dead:.1%}",
        f"loss {whole:.4f}, with the reconstruction {ours:.4f}, with zeros {zero:.4f}: recovered "
        f"{(zero - ours) / (zero - whole):.4f}; {steps} steps, {len(x_md):,} tokens",
    ]
    return table._replace(notes=[*quality, *table.notes])
