"""Activation patching: which values of one run bring its answer back in another."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.interpret.activations import record, unrolled
from transformer.interpret.instruments.answers import answer_and_rival, difference, ends
from transformer.interpret.instruments.base import Subject, Table
from transformer.interpret.interventions import Edit, Interventions
from transformer.models.decoder import Decoder

Array = jax.Array | np.ndarray


def patching(
    model: Decoder,
    params: Any,
    clean_1t: Array,
    corrupted_1t: Array,
    answer: int,
    rival: int,
    site: str = "input",
) -> jax.Array:
    """(n, t): how much of the clean answer comes back if the corrupted run gets the clean value of one layer
    at one position,

        (d(patched) - d(corrupted)) / (d(clean) - d(corrupted)),   d = logit(answer) - logit(rival)

    behind the last token: 0 without effect, 1 as in the clean run. `site` is "input", the residual stream
    before the layer, "attention" or "feed_forward".

    Source: Meng et al. 2022, section 2; Wang et al. 2023, section 3.

    Raises:
      UserError: texts of different lengths, or the two runs do not differ.
    """
    clean, corrupted = ends(model, params, clean_1t, corrupted_1t, answer, rival)
    values = record(model, params, clean_1t, f"blocks/*/{site}")
    n, t = len(values), clean_1t.shape[1]
    places_m2 = jnp.stack(jnp.meshgrid(jnp.arange(n), jnp.arange(t), indexing="ij"), axis=-1).reshape(-1, 2)
    patched_m = _patched(params, corrupted_1t, values, places_m2, answer, rival, model=unrolled(model))
    return (patched_m.reshape(n, t) - corrupted) / (clean - corrupted)


@functools.partial(jax.jit, static_argnames="model")
def _patched(
    params: Any,
    tokens_1t: jax.Array,
    values: dict[str, jax.Array],
    places_m2: jax.Array,
    answer: int,
    rival: int,
    *,
    model: Any,
) -> jax.Array:
    numbers = {path: int(path.split("/")[1]) for path in values}
    rows = {number: row for row, number in enumerate(sorted(numbers.values()))}

    def one(place_2: jax.Array) -> jax.Array:
        def change(path: str, x_1td: jax.Array, positions_1t: jax.Array | None) -> jax.Array:
            here_1t = (place_2[0] == rows[numbers[path]]) & (positions_1t == place_2[1])
            return jnp.where(here_1t[..., None], values[path], x_1td)

        edits = (Edit(path, change) for path in values)
        with Interventions(*edits):  # all layers in one program, of which each call changes one
            return difference(model.apply({"params": params}, tokens_1t), answer, rival)[0]

    return jax.lax.map(one, places_m2, batch_size=16)


def table(subject: Subject) -> Table:
    """The grid of layers and tokens."""
    prompt, against = subject.compared()
    pair, site = answer_and_rival(subject), subject.options["site"] or "input"
    grid_nt = np.asarray(
        patching(subject.model, subject.params, prompt.tokens_1t, against.tokens_1t, *pair, site)
    )
    ours, theirs = subject.names(pair)
    title = f"the share of {ours!r} against {theirs!r} that comes back with the {site} of a layer at a token"
    return Table(title, grid_nt.T, prompt.names, [f"layer_{i}" for i in range(len(grid_nt))])
