"""Drawing a token from logits: greedy, or sampled after top-k, top-p and min-p filters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from transformer.config import (
    Bound,
    Bounded,
    Fraction,
    Nonnegative,
    NonnegativeFloat,
    Positive,
    PositiveFraction,
)
from transformer.errors import UserError


@dataclass(frozen=True)
class DecodingConfig(Bounded):
    """Sampling of tokens, and the end of a text."""

    max_new_tokens: Positive = 64  # longest completion
    temperature: NonnegativeFloat = 1.0  # sampling temperature; 0: greedy
    top_k: Nonnegative = 0  # sample from the k likeliest tokens; 0: all
    top_p: PositiveFraction = 1.0  # sample from the likeliest tokens with this probability mass; 1: all
    min_p: Fraction = 0.0  # sample from tokens with this fraction of the highest probability; 0: all
    num_samples: Annotated[int, Bound("from 1 to 10,000", 1, 10_000)] = 1  # samples per prompt
    stop: tuple[str, ...] = ()  # stop strings; the completion ends before the first
    # type of the weights of products; of fewer bits: rounded when the parameters are read
    weights: Literal["float32", "bfloat16", "int8", "float8"] = "float32"
    cache: Literal["auto", "int8"] = "auto"  # type of cached keys and values; auto: model.dtype

    def _check_stop(self) -> None:
        if "" in self.stop:
            raise UserError("stop: ''; expected strings of at least one character")

    checks: ClassVar = {"stop": _check_stop}

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `draw`: the temperature, and if it is not 0 the filters that are on."""
        if not self.temperature:
            return {"temperature": None}
        filters = {key: getattr(self, key) for key, (_, off) in FILTERS.items() if getattr(self, key) != off}
        return {"temperature": self.temperature, **filters}


@dataclass(frozen=True)
class SamplingConfig(DecodingConfig):
    """Completion of prompts."""

    prompt: str = "def "  # prompt of the samples during and after training
    temperature: NonnegativeFloat = 0.8
    top_p: PositiveFraction = 0.95
    end_tokens: tuple[str, ...] = ()  # names of further tokens that end a completion, such as <|eot_id|>


def draw(
    logits_bv: jax.Array, rngs_b: jax.Array, *, temperature: jax.Array | float | None = 1.0, **filters: Any
) -> jax.Array:
    """One token for each row, (b,) int32: argmax(logits) with `temperature` None, otherwise drawn from

    softmax(MinP(TopP(TopK(logits / temperature)))), all in float32, with those of the `FILTERS` that are
    given. Temperature 0 is the limit: the largest logits, drawn among equal ones. None compiles another
    program, without a branch, for which a GPU would wait in each step.
    """
    if temperature is None:
        return jnp.argmax(logits_bv, axis=-1).astype(jnp.int32)
    return pick(_softmax(logits_bv, temperature, **filters), rngs_b)


def probabilities(
    logits_bv: jax.Array, *, temperature: jax.Array | float | None = 1.0, **filters: Any
) -> jax.Array:
    """The probability of each token in `draw`, (b, v) float32; one-hot with `temperature` None."""
    if temperature is None:
        return jax.nn.one_hot(jnp.argmax(logits_bv, axis=-1), logits_bv.shape[-1], dtype=jnp.float32)
    return _softmax(logits_bv, temperature, **filters)


def _softmax(logits_bv: jax.Array, temperature, **filters) -> jax.Array:
    logits_bv = logits_bv.astype(jnp.float32)
    # Subtract the maximum before the division, so that a temperature near 0 gives no infinities. From about
    # 1e38 on 1 / temperature is 0 in float32, and 0 times -inf is not a number; so is 0 / 0.
    logits_bv = (logits_bv - jnp.max(logits_bv, axis=-1, keepdims=True)) / jnp.clip(temperature, 1e-37, 1e37)
    for name in sorted(filters, key=[*FILTERS].index):
        logits_bv = FILTERS[name][0](logits_bv, filters[name])
    return jax.nn.softmax(logits_bv, axis=-1)


def pick(probabilities_bv: jax.Array, rngs_b: jax.Array) -> jax.Array:
    """One draw for each row, (b,) int32: the smallest token up to which the probabilities, which need not
    sum to 1, sum to more than a uniform number times their total.

    All sums of the bisection run over the whole row in the same order, so they increase exactly at tokens
    with a probability above 0: a token that was filtered out is never drawn. This takes one random number per
    row, the Gumbel trick one per token of the vocabulary.
    """
    rows, vocabulary = probabilities_bv.shape
    tokens_v = jnp.arange(vocabulary, dtype=jnp.int32)

    def mass(last_b: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(tokens_v <= last_b[:, None], probabilities_bv, 0.0), axis=-1)

    last_b = jnp.full(rows, vocabulary - 1, jnp.int32)
    target_b = jax.vmap(jax.random.uniform)(rngs_b) * mass(last_b)
    none_b, halvings = jnp.zeros_like(last_b), vocabulary.bit_length()
    return bisect(lambda token_b: mass(token_b) > target_b, none_b, last_b, halvings)


def keep_top_k(logits_bv: jax.Array, k: jax.Array | int) -> jax.Array:
    """Keeps a token when fewer than `k` tokens are more probable; the others' logits become -inf.

    Equal logits are kept or dropped together, so a tie at the edge keeps more than `k` tokens.
    `k` below 1 keeps all. (b, v) float32 -> (b, v). Source: Fan et al. 2018, section 5.4.
    """
    return _keep_top(logits_bv, jnp.ones_like(logits_bv), jnp.where(k < 1, jnp.inf, k))


def keep_top_p(logits_bv: jax.Array, p: jax.Array | float) -> jax.Array:
    """Keeps a token when the tokens more probable than it have a total probability below `p`; the others'
    logits become -inf.

    These are the smallest set of most probable tokens with a total of at least `p`, and all ties with its
    last one. `p` of 1 or more keeps all. (b, v) float32 -> (b, v).
    Source: Holtzman et al. 2020, section 3.1.
    """
    return _keep_top(logits_bv, jax.nn.softmax(logits_bv, axis=-1), jnp.where(p >= 1, jnp.inf, p))


def keep_min_p(logits_bv: jax.Array, p: jax.Array | float) -> jax.Array:
    """Keeps a token when its probability is at least `p` times that of the most probable one; the others'
    logits become -inf. `p` of 0 keeps all. (b, v) float32 -> (b, v).

    The ratio is exp(x - max x), without a sum.
    Source: Nguyen et al. 2024, section 3.
    """
    below_bv = logits_bv - jnp.max(logits_bv, axis=-1, keepdims=True) < jnp.log(p)
    return jnp.where(below_bv, -jnp.inf, logits_bv)


FILTERS = {"top_k": (keep_top_k, 0), "top_p": (keep_top_p, 1.0), "min_p": (keep_min_p, 0.0)}
"""Key of `DecodingConfig` -> filter and the value at which it keeps every token, in the order in which they
follow one another."""


def bisect(
    holds: Callable[[jax.Array], jax.Array], low_b: jax.Array, high_b: jax.Array, halvings: int
) -> jax.Array:
    """The smallest integer in [`low_b`, `high_b`] for which `holds` is true, by bisection, for each row.

    `holds` maps (b,) int32 to (b,) bool, must be monotone, and is assumed to be true at `high_b`;
    2^`halvings` must be at least the number of candidates.
    """

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low_b, high_b = bounds
        middle_b = (low_b & high_b) + ((low_b ^ high_b) >> 1)  # the mean rounded down, without overflow
        holds_b = holds(middle_b)
        return jnp.where(holds_b, low_b, middle_b + 1), jnp.where(holds_b, middle_b, high_b)

    return jax.lax.fori_loop(0, halvings, halve, (low_b, high_b))[1]


def _keep_top(logits_bv: jax.Array, weights_bv: jax.Array, limit: jax.Array) -> jax.Array:
    """Keeps x where the weights of all larger logits sum to less than `limit`.

    That sum decreases in x, so the kept logits are those above a threshold. The bits of floats, read as
    integers, have the order of the floats, so 32 bisection steps find the threshold exactly. Each is one pass
    over the row; sorting a large vocabulary would take longer than a whole step of a small model.
    """
    bits_bv = jax.lax.bitcast_convert_type(logits_bv, jnp.int32)
    # The bits of negative floats are in reverse order, so they are counted down from those of -0, which is 0.
    order_bv = jnp.where(bits_bv < 0, jnp.iinfo(jnp.int32).min - bits_bv, bits_bv)

    def few_above(threshold_b: jax.Array) -> jax.Array:
        above_bv = order_bv > threshold_b[:, None]
        return jnp.sum(jnp.where(above_bv, weights_bv, 0.0), axis=-1) < limit

    lowest_b = jnp.full(logits_bv.shape[0], jnp.iinfo(jnp.int32).min)
    threshold_b = bisect(few_above, lowest_b, jnp.max(order_bv, axis=-1), halvings=32)
    return jnp.where(order_bv >= threshold_b[:, None], logits_bv, -jnp.inf)
