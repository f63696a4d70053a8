"""Kinds of heads: induction heads, and heads that attend to the token before."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.errors import UserError
from transformer.interpret.activations import record
from transformer.interpret.instruments.base import Subject, Table
from transformer.models.decoder import Decoder

Array = jax.Array | np.ndarray

ROWS, PERIOD = 16, 32
"""The random tokens that heads are scored on without --prompt."""


def follows(tokens_bt: Array) -> jax.Array:
    """(b, t, s): whether token s follows an earlier occurrence of token t."""
    places, before_bs = jnp.arange(tokens_bt.shape[1]), jnp.roll(tokens_bt, 1, axis=1)
    return (tokens_bt[:, :, None] == before_bs[:, None]) & (places > 0) & (places <= places[:, None])


def head_scores(model: Decoder, params: Any, tokens_bt: Array) -> dict[str, dict[str, jax.Array]]:
    """{"induction" and "previous": {"blocks/0": (h,)}}: the mean attention of each head to tokens that follow
    earlier occurrences of the query's token, over queries with such, and to the token before the query's.

    Source: Olsson et al. 2022, the prefix-matching score, and the scores of previous-token heads.

    Raises:
      UserError: no token of the texts occurs twice, or the model has no attention weights.
    """
    follows_bts = follows(tokens_bt)
    count = float(jnp.sum(follows_bts.any(axis=-1)))
    if not count:
        raise UserError("induction: no token of the text occurs before; expected one that repeats itself")
    suffix = "/attention/weights"
    by_layer = {
        path.removesuffix(suffix): w
        for path, w in record(model, params, tokens_bt, f"blocks/*{suffix}").items()
    }
    return {
        "induction": {
            path: jnp.einsum("bhts,bts->h", w_bhts, follows_bts) / count for path, w_bhts in by_layer.items()
        },
        "previous": {
            path: jnp.diagonal(w_bhts, offset=-1, axis1=2, axis2=3).mean(axis=(0, 2))
            for path, w_bhts in by_layer.items()
        },
    }


def repeated_tokens(vocab_size: int, rows: int, period: int, seed: int = 0) -> np.ndarray:
    """(rows, 2 period) random tokens, each row twice: the text of Olsson et al. 2022 on which induction heads
    show."""
    once_bt = np.random.default_rng(seed).integers(0, vocab_size, (rows, period))
    return np.concatenate([once_bt, once_bt], axis=1)


def table(subject: Subject) -> Table:
    """The scores of all heads on --prompt, or on random tokens that are repeated."""
    if subject.prompt is None:
        tokens_bt: Any = repeated_tokens(subject.model.vocab_size, ROWS, min(PERIOD, subject.longest // 2))
    else:
        tokens_bt = subject.prompt.tokens_1t
    scores = {
        f"layer_{path.split('/')[1]}/{kind}": np.asarray(scores_h)
        for kind, by_layer in head_scores(subject.model, subject.params, tokens_bt).items()
        for path, scores_h in by_layer.items()
    }
    most = max(map(len, scores.values()))
    values_rc = np.stack([np.pad(scores_h, (0, most - len(scores_h))) for scores_h in scores.values()])
    return Table("the attention of heads", values_rc, [*scores], [f"head_{h}" for h in range(most)])
