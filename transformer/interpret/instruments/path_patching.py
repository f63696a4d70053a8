"""Path patching: the direct effect of a head on the input of a later head, or on the logits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.errors import UserError
from transformer.interpret.activations import Recorder, record, unrolled, visiting
from transformer.interpret.instruments.answers import answer_and_rival, difference, ends
from transformer.interpret.instruments.base import Subject, Table
from transformer.interpret.interventions import Edit, Interventions
from transformer.models.decoder import Decoder

Array = jax.Array | np.ndarray
HEADS = "blocks/*/attention/output/input"


def path_patching(
    model: Decoder, params: Any, clean_1t: Array, corrupted_1t: Array, answer: int, rival: int
) -> jax.Array:
    """(n, h, n + 1, h): how much of the clean answer comes back if one head of the corrupted run writes what
    it writes in the clean run, and of all that reads it, one later head, or the logits, see the change:

        (d(patched) - d(corrupted)) / (d(clean) - d(corrupted)),   d = logit(answer) - logit(rival)

    behind the last token, for (layer, head) of the sender and of the receiver. The outputs of all sublayers
    between them are frozen at their corrupted values; what follows the receiver is computed. The receiver's
    queries, keys and values all change. Layer n, head 0 are the logits; earlier receivers have 0.

    Source: Wang et al. 2023, "Interpretability in the wild", section 3.1; Goldowsky-Dill et al. 2023,
    "Localizing model behavior with path patching".

    Raises:
      UserError: layers do not add their heads to the residual stream, or as `patching`.
    """
    c = model.config
    if c.norm_placement != "pre":
        raise UserError(f"path_patching: model.norm_placement: {c.norm_placement!r}; expected 'pre'")
    clean, corrupted = ends(model, params, clean_1t, corrupted_1t, answer, rival)
    heads, base = (record(model, params, x_1t, HEADS) for x_1t in (clean_1t, corrupted_1t))
    kinds = {x_bthk.shape[2] for x_bthk in heads.values()}
    if len(heads) < c.num_layers or len(kinds) > 1:
        raise UserError("path_patching: the layers differ in their heads; expected attention in all of them")
    layers, (h,), n = c.stack(causal=True).unstack(params["blocks"]), kinds, c.num_layers
    changes_nh1td = jnp.stack(
        [
            jnp.einsum("bthk,hkd->hbtd", heads[path] - base[path], layer["attention"]["output"]["kernel"])
            for path, layer in zip(heads, layers, strict=True)
        ]
    )
    senders = [(i, j, m) for i in range(n) for j in range(h) for m in range(i + 1, n + 1)]
    arguments = params, corrupted_1t, changes_nh1td, jnp.array(senders)
    patched_sh = _patched(*arguments, answer, rival, model=unrolled(model), heads=h)
    grid_nhnh = jnp.full((n, h, n + 1, h), corrupted)
    grid_nhnh = grid_nhnh.at[tuple(jnp.array(senders).T)].set(patched_sh)
    share_nhnh = (grid_nhnh - corrupted) / (clean - corrupted)
    return share_nhnh.at[:, :, n, 1:].set(0)


@functools.partial(jax.jit, static_argnames=("model", "heads"))
def _patched(
    params: Any,
    tokens_1t: jax.Array,
    changes_nh1td: jax.Array,
    senders_s3: jax.Array,
    answer: int,
    rival: int,
    *,
    model: Any,
    heads: int,
) -> jax.Array:
    """(s, h): the difference of logits for each sender and layer of receivers, and each head of that."""
    n = changes_nh1td.shape[0]

    def apply() -> jax.Array:
        return difference(model.apply({"params": params}, tokens_1t), answer, rival)[0]

    def one(sender_3: jax.Array) -> jax.Array:
        layer, change_1td = sender_3[2], changes_nh1td[sender_3[0], sender_3[1]]

        def read(path: str, x_1td: jax.Array, _: Any) -> jax.Array:
            return x_1td + jnp.where(layer == _layer(path), change_1td, 0)

        recorder = Recorder((HEADS,))
        with Interventions(Edit("blocks/*/input", read)), visiting(recorder):
            apply()

        def write(head: jax.Array) -> jax.Array:
            def change(path: str, x_1thk: jax.Array, _: Any) -> jax.Array:
                here_h1 = (jnp.arange(heads)[:, None] == head) & (layer == _layer(path))
                return jnp.where(here_h1, recorder.values[path], x_1thk)

            def last(path: str, x_1td: jax.Array, _: Any) -> jax.Array:
                return x_1td + jnp.where(layer == n, change_1td, 0)

            with Interventions(Edit(HEADS, change), Edit(f"blocks/{n - 1}", last)):
                return apply()

        return jax.vmap(write)(jnp.arange(heads))

    return jax.lax.map(one, senders_s3, batch_size=8)


def _layer(path: str) -> int:
    return int(path.split("/")[1])


def table(subject: Subject) -> Table:
    """The grid of senders and receivers."""
    prompt, against = subject.compared()
    pair = answer_and_rival(subject)
    texts = prompt.tokens_1t, against.tokens_1t
    grid_nhnh = np.asarray(path_patching(subject.model, subject.params, *texts, *pair))
    n, h = grid_nhnh.shape[:2]
    names = [f"{layer}.{head}" for layer in range(n) for head in range(h)]
    grid_rc = grid_nhnh.reshape(n * h, (n + 1) * h)[:, h : n * h + 1]
    ours, theirs = subject.names(pair)
    title = (
        f"the share of {ours!r} against {theirs!r} that comes back on the path from a head (row) to another"
    )
    return Table(title, grid_rc, names, [*names[h:], "logits"])
