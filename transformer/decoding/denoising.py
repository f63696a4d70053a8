"""Filling in the masks of a text in a few passes of a model that reads the whole text."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

ORDERS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "surest": lambda log_p_bt, noise_bt: log_p_bt,
    "random": lambda log_p_bt, noise_bt: noise_bt,
    "left": lambda log_p_bt, noise_bt: -jnp.broadcast_to(jnp.arange(log_p_bt.shape[1]), log_p_bt.shape),
}
"""Name -> (log-probabilities of the drawn tokens (b, t), uniform numbers (b, t)) -> which masks are filled
first, from the largest on: the surest (Nie et al. 2025, LLaDA, section 2.4), random ones (Sahoo et al. 2024,
MDLM, section 3.1), or those on the left."""


def fill_masks(
    logits: Callable[[jax.Array], jax.Array],
    tokens_bt: jax.Array,
    rngs_b: jax.Array,
    *,
    mask: int,
    steps: int,
    order: str = "surest",
    temperature: Any = None,
) -> jax.Array:
    """The tokens (b, t) with every `mask` filled in, and all others as they are.

    Each of the `steps` passes draws a token for each mask from softmax(logits / temperature), by
    argmax(logits / temperature + Gumbel noise), and keeps ceil(masks that are left / passes that are left) of
    them, in the order of `ORDERS`. `logits` maps tokens to (b, t, v), with -inf for what must not be drawn.
    `temperature` None draws the likeliest. Row i depends on its tokens and `rngs_b[i]` alone.
    """

    def noise(number: jax.Array, name: int, shape: tuple[int, ...], draw: Callable) -> jax.Array:
        keys_b = jax.vmap(lambda rng: jax.random.fold_in(jax.random.fold_in(rng, number), name))(rngs_b)
        return jax.vmap(lambda key: draw(key, shape))(keys_b)

    def one_pass(number: jax.Array, tokens_bt: jax.Array) -> jax.Array:
        masked_bt, logits_btv = tokens_bt == mask, logits(tokens_bt).astype(jnp.float32)
        scores_btv = logits_btv
        if temperature is not None:
            scores_btv = logits_btv / temperature + noise(number, 0, logits_btv.shape[1:], jax.random.gumbel)
        drawn_bt = jnp.argmax(scores_btv, axis=-1).astype(jnp.int32)
        log_p_btv = jax.nn.log_softmax(logits_btv)
        log_p_bt = jnp.take_along_axis(log_p_btv, drawn_bt[..., None], axis=-1)[..., 0]
        worth_bt = ORDERS[order](log_p_bt, noise(number, 1, tokens_bt.shape[1:], jax.random.uniform))
        rank_bt = jnp.argsort(jnp.argsort(jnp.where(masked_bt, -worth_bt, jnp.inf), axis=1), axis=1)
        left_b1 = jnp.sum(masked_bt, axis=1, keepdims=True)
        count_b1 = -(-left_b1 // (steps - number))
        return jnp.where(masked_bt & (rank_bt < count_b1), drawn_bt, tokens_bt)

    return jax.lax.fori_loop(0, steps, one_pass, tokens_bt)
