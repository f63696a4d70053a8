"""Subjects of instruments: a small decoder with random parameters, and batches of random tokens."""

import jax.numpy as jnp
import numpy as np

from tests.parameters import random_params
from transformer.interpret.instruments.base import Reading, Subject
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.sums import Sum

VOCAB = 19
SIZES = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 12}


def make(rng, **changes):
    """A model, its parameters, and tokens (2, 8)."""
    model = Decoder(DecoderConfig(**SIZES | changes), VOCAB)
    tokens_bt = jnp.asarray(rng.integers(0, VOCAB, (2, 8)))
    return model, random_params(rng, model, tokens_bt), tokens_bt


def subject_of(rng, rows_nt=None, batch_size=4, options=(), scale=1.0, **changes) -> Subject:
    """A subject whose batches have these rows (by default 8 random ones, of which the last tokens of every
    other one are padding), and whose prompts are the first two."""
    model, params, _ = make(rng, **changes)
    rows_nt = rng.integers(0, VOCAB, (8, 8)) if rows_nt is None else rows_nt
    segments_nt = np.ones_like(rows_nt)
    segments_nt[::2, -2:] = 0

    def loss(params, batch):
        logits_btv = model.apply({"params": params}, batch["tokens"]) * scale
        log_p_btv = logits_btv - jnp.log(jnp.sum(jnp.exp(logits_btv), axis=-1, keepdims=True))
        nll_bt = -jnp.take_along_axis(log_p_btv[:, :-1], batch["tokens"][:, 1:, None], axis=-1)[..., 0]
        return {"loss": Sum.of(nll_bt, batch["segments"][:, 1:].astype(jnp.float32))}

    def batches(split):
        for start in range(0, len(rows_nt), batch_size):
            part = slice(start, start + batch_size)
            yield {"tokens": jnp.asarray(rows_nt[part]), "segments": jnp.asarray(segments_nt[part])}

    def reading(row):
        tokens_1t = rows_nt[row : row + 1]
        forward = lambda params: model.apply({"params": params}, tokens_1t)  # noqa: E731
        return Reading(forward, [*map(str, tokens_1t[0])], tokens_1t)

    return Subject(
        model,
        params,
        lambda tokens: [str(int(token)) for token in tokens],
        loss,
        batches,
        lambda batch: (np.asarray(batch["tokens"]), np.asarray(batch["segments"]) > 0),
        dict(options),
        8,
        " ",
        reading(0),
        reading(1),
    )
