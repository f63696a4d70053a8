"""The next tokens of two texts, which instruments compare, and the difference of their logits."""

from typing import Any

import jax
import numpy as np

from transformer.errors import UserError
from transformer.interpret.instruments.base import check_same_length
from transformer.interpret.interventions import logits


def answer_and_rival(subject: Any) -> tuple[int, int]:
    """The most probable next token of --prompt, and that of --against or else the second one.

    Raises:
      UserError: they are the same.
    """

    def ranked(reading: Any) -> np.ndarray:
        return np.argsort(-np.asarray(logits(subject.model, subject.params, reading.tokens_1t)[0, -1]))

    answer, rival = ranked(subject.prompt)[:2]
    if subject.against is not None:
        rival = ranked(subject.against)[0]
    if answer == rival:
        name = subject.names([answer])[0]
        raise UserError(f"--against: the model continues both texts with {name!r}; expected another token")
    return int(answer), int(rival)


def difference(logits_btv: jax.Array, answer: int, rival: int) -> jax.Array:
    """(b,): the logit of the answer less that of its rival, behind the last token."""
    return logits_btv[:, -1, answer] - logits_btv[:, -1, rival]


def ends(model: Any, params: Any, clean_1t: Any, corrupted_1t: Any, *pair: int) -> tuple[float, float]:
    """The difference of logits of two texts. Raises `UserError` if it is the same, or `check_same_length`."""
    check_same_length(clean_1t, corrupted_1t)
    texts = (clean_1t, corrupted_1t)
    clean, corrupted = (float(difference(logits(model, params, x_1t), *pair)[0]) for x_1t in texts)
    if abs(clean - corrupted) < 1e-6:
        raise UserError(f"both texts give the logit difference {clean:.4f}: there is nothing to bring back")
    return clean, corrupted
