"""Greedy decoding and sampling: one jitted loop for any model behind the `Stepper` protocol."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.decoding import filters
from transformer.decoding.stepper import Stepper
from transformer.errors import UserError


@dataclass(frozen=True)
class DrawConfig:
    """How tokens are drawn, and what ends a text; `configs/base/` says what each key means."""

    max_new_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_samples: int = 1
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("max_new_tokens", "num_samples"):
            if getattr(self, key) < 1:
                raise UserError(f"{key}: {getattr(self, key)}; expected at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature: {self.temperature}; expected 0 (the likeliest token) or more")
        if self.top_k < 0:
            raise UserError(f"top_k: {self.top_k}; expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p: {self.top_p}; expected a share in (0, 1], 1 for all tokens")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p: {self.min_p}; expected a share in [0, 1], 0 for all tokens")
        if "" in self.stop:
            raise UserError("stop: ''; expected texts of at least one character")

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `draw`."""
        return {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p")}


@dataclass(frozen=True)
class SamplingConfig(DrawConfig):
    """How a text is completed; `configs/base/` says what each key means."""

    prompt: str = "def "
    temperature: float = 0.8
    top_p: float = 0.95


@struct.dataclass
class Drawn:
    """Where a batch of rows stands: its last token, which the model has not read, and whether it has ended;
    how many tokens were drawn, which are all that a row may have, and at which place of its text a row's
    first one stood."""

    token_b: jax.Array
    done_b: jax.Array
    index: jax.Array
    limits_b: jax.Array
    places_b: jax.Array
    cache: Any


@functools.partial(jax.jit, static_argnames="room")
def begin(
    stepper: Stepper,
    tokens_bt: jax.Array,
    lengths_b: jax.Array,
    rngs_b: jax.Array,
    *,
    room: int,
    limits_b: jax.Array | None = None,
    places_b: jax.Array | None = None,
    eos_id: jax.Array | int = -1,
    **options: Any,
) -> Drawn:
    """Reads right-padded prompts and draws each one's first new token.

    Row i will have at most `limits_b[i]` (at least 1; None: `room`, which is the most there may be). Its
    first token is drawn with `fold_in(rngs_b[i], places_b[i])` (None: its prompt's length), the next one with
    `places_b[i] + 1`, and so on. `options` are those of `draw`.
    """
    batch = tokens_bt.shape[0]
    logits_bv, cache = stepper.prefill(tokens_bt, lengths_b, room)
    limits_b = jnp.full(batch, room) if limits_b is None else jnp.asarray(limits_b)
    places_b = jnp.asarray(lengths_b if places_b is None else places_b)
    token_b = draw(logits_bv, _keys(rngs_b, places_b), **options)
    done_b = (token_b == eos_id) | (limits_b <= 1)
    return Drawn(token_b, done_b, jnp.int32(1), limits_b, places_b, cache)


@functools.partial(jax.jit, static_argnames="n", donate_argnames="drawn")
def advance(
    stepper: Stepper,
    drawn: Drawn,
    rngs_b: jax.Array,
    *,
    n: int,
    eos_id: jax.Array | int = -1,
    **options: Any,
) -> tuple[jax.Array, Drawn]:
    """The next n tokens of each row, (b, n) int32, `eos_id` where it has ended, and where it stands then.

    The loop stops when every row has ended.
    """
    batch = drawn.token_b.shape[0]
    new_bn = jnp.full((batch, n), eos_id, jnp.int32)
    if not n:
        return new_bn, drawn

    def unfinished(state: tuple[jax.Array, jax.Array, Drawn]) -> jax.Array:
        i, _, drawn = state
        return (i < n) & ~jnp.all(drawn.done_b)

    def extend(state: tuple[jax.Array, jax.Array, Drawn]) -> tuple[jax.Array, jax.Array, Drawn]:
        i, new_bn, old = state
        logits_bv, cache = stepper.step(old.token_b, old.cache)
        token_b = draw(logits_bv, _keys(rngs_b, old.places_b + old.index), **options)
        token_b = jnp.where(old.done_b, eos_id, token_b)
        new_bn = jax.lax.dynamic_update_slice(new_bn, token_b[:, None], (0, i))
        index = old.index + 1
        done_b = old.done_b | (token_b == eos_id) | (index >= old.limits_b)
        return i + 1, new_bn, Drawn(token_b, done_b, index, old.limits_b, old.places_b, cache)

    _, new_bn, drawn = jax.lax.while_loop(unfinished, extend, (jnp.int32(0), new_bn, drawn))
    return new_bn, drawn


@functools.partial(jax.jit, static_argnames="max_new_tokens")
def generate(
    stepper: Stepper,
    tokens_bt: jax.Array,
    lengths_b: jax.Array,
    rngs_b: jax.Array,
    *,
    max_new_tokens: int,
    temperature: jax.Array | float = 1.0,
    top_k: jax.Array | int = 0,
    top_p: jax.Array | float = 1.0,
    min_p: jax.Array | float = 0.0,
    eos_id: jax.Array | int = -1,
) -> tuple[jax.Array, jax.Array]:
    """Continues each row of right-padded prompts until `eos_id` or for `max_new_tokens`.

    Returns the new tokens, (b, max_new_tokens) int32, filled with `eos_id` from a row's end on, and how
    many come before that end, (b,) int32. The loop stops when every row has ended.

    `rngs_b` holds one key a row. The token at index i of a row is drawn with `fold_in(key, i)`, so that it
    depends neither on the rest of the batch nor on padding, and a continuation may be continued. Only
    `max_new_tokens` is static: a change of the other options does not compile anew. See `draw` for them.
    """
    options: dict = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    drawn = begin(stepper, tokens_bt, lengths_b, rngs_b, room=max_new_tokens, eos_id=eos_id, **options)
    rest_bn, _ = advance(stepper, drawn, rngs_b, n=max_new_tokens - 1, eos_id=eos_id, **options)
    new_bn = jnp.concatenate([drawn.token_b[:, None], rest_bn], axis=1)
    return new_bn, jnp.sum(jnp.cumprod(new_bn != eos_id, axis=1), axis=1)


def _keys(rngs_b: jax.Array, places_b: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in)(rngs_b, places_b)


def draw(
    logits_bv: jax.Array,
    rngs_b: jax.Array,
    *,
    temperature: jax.Array | float,
    top_k: jax.Array | int,
    top_p: jax.Array | float,
    min_p: jax.Array | float = 0.0,
) -> jax.Array:
    """One token for each row, (b,) int32: argmax(logits) at temperature 0, otherwise drawn from

    softmax(MinP(TopP(TopK(logits / temperature)))), all in float32; `top_k` 0, `top_p` 1 and `min_p` 0 keep
    every token.
    """

    def greedy(logits_bv: jax.Array) -> jax.Array:
        return jnp.argmax(logits_bv, axis=-1).astype(jnp.int32)

    def sample(logits_bv: jax.Array) -> jax.Array:
        return pick(_filtered(logits_bv, temperature, top_k, top_p, min_p), rngs_b)

    return jax.lax.cond(jnp.greater(temperature, 0), sample, greedy, logits_bv)


def probabilities(
    logits_bv: jax.Array,
    *,
    temperature: jax.Array | float,
    top_k: jax.Array | int,
    top_p: jax.Array | float,
    min_p: jax.Array | float = 0.0,
) -> jax.Array:
    """How probably `draw` takes each token, (b, v) float32: at temperature 0, surely the likeliest."""

    def greedy(logits_bv: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jnp.argmax(logits_bv, axis=-1), logits_bv.shape[-1])

    def sample(logits_bv: jax.Array) -> jax.Array:
        return _filtered(logits_bv, temperature, top_k, top_p, min_p)

    return jax.lax.cond(jnp.greater(temperature, 0), sample, greedy, logits_bv)


def _filtered(logits_bv: jax.Array, temperature, top_k, top_p, min_p) -> jax.Array:
    logits_bv = logits_bv.astype(jnp.float32)
    # From the largest down, so that a temperature near 0 leaves that one instead of infinities.
    logits_bv = (logits_bv - jnp.max(logits_bv, axis=-1, keepdims=True)) / temperature
    k_given, p_given = jnp.greater(top_k, 0), jnp.less(top_p, 1)
    logits_bv = jax.lax.cond(k_given, lambda x: filters.top_k(x, top_k), lambda x: x, logits_bv)
    logits_bv = jax.lax.cond(p_given, lambda x: filters.top_p(x, top_p), lambda x: x, logits_bv)
    return jax.nn.softmax(filters.min_p(logits_bv, min_p), axis=-1)


def pick(probabilities_bv: jax.Array, rngs_b: jax.Array) -> jax.Array:
    """One draw for each row, (b,) int32: the smallest token up to which the probabilities, which need not
    sum to 1, sum to more than a uniform number times their total.

    The sums of a bisection are all over the whole row, in one order, so that they grow exactly where a
    probability is not zero: a token that was filtered out is never drawn. One random number a row, where
    the Gumbel trick takes one for each token of the vocabulary.
    """
    rows, vocabulary = probabilities_bv.shape
    tokens_v = jnp.arange(vocabulary)

    def mass(last_b: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(tokens_v <= last_b[:, None], probabilities_bv, 0.0), axis=-1)

    last_b = jnp.full(rows, vocabulary - 1)
    target_b = jax.vmap(jax.random.uniform)(rngs_b) * mass(last_b)
    none_b, halvings = jnp.zeros_like(last_b), vocabulary.bit_length()
    return filters.first(lambda token_b: mass(token_b) > target_b, none_b, last_b, halvings)
