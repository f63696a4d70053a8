"""The logit lens: the next token by the residual stream after each layer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.interpret.activations import apply, record
from transformer.interpret.instruments.base import Subject, Table
from transformer.models.decoder import Decoder

SHOWN = 24
"""The most tokens that a lens shows, the last ones."""


def lens(model: Decoder, params: Any, tokens_bt: jax.Array | np.ndarray) -> jax.Array:
    """Logits (n + 1, b, t, v) of the residual stream before the first block and after each of n, through the
    final norm and the unembedding.

    Source: nostalgebraist 2020, "Interpreting GPT: the logit lens".
    """
    x_nbtd = jnp.stack([*record(model, params, tokens_bt, "blocks/0/input", "blocks/*").values()])
    flat_btv = apply(model, params, x_nbtd.reshape(-1, *x_nbtd.shape[2:]), method="logits")
    return flat_btv.reshape(*x_nbtd.shape[:3], -1)


def table(subject: Subject) -> Table:
    """The most probable next token by each layer, and its probability."""
    logits_ntv = lens(subject.model, subject.params, subject.prompt.tokens_1t)[:, 0, -SHOWN:]
    probabilities_tnv = np.asarray(jax.nn.softmax(logits_ntv)).swapaxes(0, 1)
    texts = [subject.names(row_n) for row_n in probabilities_tnv.argmax(-1)]
    columns = ["embedding", *(f"layer_{i}" for i in range(len(texts[0]) - 1))]
    rows, title = subject.prompt.names[-SHOWN:], "the most probable next token"
    return Table(title, probabilities_tnv.max(-1), rows, columns, texts)
