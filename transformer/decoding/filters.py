"""Which tokens may be drawn: top-k, top-p and min-p, exact and without a sort."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def top_k(logits_bv: jax.Array, k: jax.Array | int) -> jax.Array:
    """Keeps a token when fewer than `k` tokens are more probable; the others' logits become -inf.

    Equal logits stand or fall together, so that a tie at the edge keeps more than `k` tokens.
    `k` below 1 keeps all. (b, v) float32 -> (b, v). Source: Fan et al. 2018, section 5.4.
    """
    return _keep_top(logits_bv, jnp.ones_like(logits_bv), jnp.where(k < 1, jnp.inf, k))


def top_p(logits_bv: jax.Array, p: jax.Array | float) -> jax.Array:
    """Keeps a token when the tokens more probable than it have a total probability below `p`; the others'
    logits become -inf.

    The kept are the smallest set of most probable tokens that has a total of at least `p`, together with
    whatever ties with its last. `p` of 1 or more keeps all. (b, v) float32 -> (b, v).
    Source: Holtzman et al. 2020, section 3.1.
    """
    return _keep_top(logits_bv, jax.nn.softmax(logits_bv, axis=-1), jnp.where(p >= 1, jnp.inf, p))


def min_p(logits_bv: jax.Array, p: jax.Array | float) -> jax.Array:
    """Keeps a token when its probability is at least `p` times that of the most probable one; the others'
    logits become -inf. `p` of 0 keeps all. (b, v) float32 -> (b, v).

    Of softmax(x) that ratio is exp(x - max x): there is nothing to sum.
    Source: Nguyen et al. 2024, section 3.
    """
    below_bv = logits_bv - jnp.max(logits_bv, axis=-1, keepdims=True) < jnp.log(p)
    return jnp.where(below_bv, -jnp.inf, logits_bv)


def first(
    holds: Callable[[jax.Array], jax.Array], low_b: jax.Array, high_b: jax.Array, halvings: int
) -> jax.Array:
    """The smallest integer from `low_b` to `high_b` at which `holds`, by bisection, for each row.

    `holds` maps (b,) int32 to (b,) bool, must not turn false again as its argument grows, and is taken to
    be true at `high_b`; 2^`halvings` must be at least the number of candidates.
    """

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low_b, high_b = bounds
        middle_b = (low_b & high_b) + ((low_b ^ high_b) >> 1)  # the mean rounded down, without overflow
        holds_b = holds(middle_b)
        return jnp.where(holds_b, low_b, middle_b + 1), jnp.where(holds_b, middle_b, high_b)

    return jax.lax.fori_loop(0, halvings, halve, (low_b, high_b))[1]


def _keep_top(logits_bv: jax.Array, weights_bv: jax.Array, limit: jax.Array) -> jax.Array:
    """Keeps x where the weights of all larger logits sum to less than `limit`.

    That sum falls as x rises, so the kept logits are those from a threshold up, and a float's bits, read as
    an integer, are in the floats' order: 32 halvings find it exactly. Each is one pass over the row; a sort
    of a large vocabulary would cost more than a whole step of a small model.
    """
    bits_bv = jax.lax.bitcast_convert_type(logits_bv, jnp.int32)
    # Negative floats count downwards: flipped, they too are in order.
    order_bv = jnp.where(bits_bv < 0, bits_bv ^ jnp.iinfo(jnp.int32).max, bits_bv)

    def few_above(threshold_b: jax.Array) -> jax.Array:
        above_bv = order_bv > threshold_b[:, None]
        return jnp.sum(jnp.where(above_bv, weights_bv, 0.0), axis=-1) < limit

    lowest_b = jnp.full(logits_bv.shape[0], jnp.iinfo(jnp.int32).min)
    threshold_b = first(few_above, lowest_b, jnp.max(order_bv, axis=-1), halvings=32)
    return jnp.where(order_bv >= threshold_b[:, None], logits_bv, -jnp.inf)
