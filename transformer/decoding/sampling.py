"""Greedy decoding and sampling: one jitted loop for any model behind the `Stepper` protocol."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from transformer.decoding import batching, filters
from transformer.decoding.stepper import Stepper
from transformer.errors import UserError


@dataclass(frozen=True)
class SamplingConfig:
    """How text is completed; `configs/base/` says what each key means."""

    prompt: str = "def "
    max_new_tokens: int = 64
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    num_samples: int = 1

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
    eos_id: jax.Array | int = -1,
) -> tuple[jax.Array, jax.Array]:
    """Continues each row of right-padded prompts until `eos_id` or for `max_new_tokens`.

    Returns the new tokens, (b, max_new_tokens) int32, filled with `eos_id` from a row's end on, and how
    many come before that end, (b,) int32. The loop stops when every row has ended.

    `rngs_b` holds one key a row. The token at index i of a row is drawn with `fold_in(key, i)`, so that it
    depends neither on the rest of the batch nor on padding, and a continuation may be continued. Only
    `max_new_tokens` is static: a change of the other options does not compile anew. See `draw` for them.
    """
    options: dict = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    batch = tokens_bt.shape[0]

    def choose(logits_bv: jax.Array, index: jax.Array | int, done_b: jax.Array) -> jax.Array:
        step_rngs_b = jax.vmap(jax.random.fold_in)(rngs_b, lengths_b + index)
        return jnp.where(done_b, eos_id, draw(logits_bv, step_rngs_b, **options))

    def unfinished(state) -> jax.Array:
        index, _, done_b, _, _ = state
        return (index < max_new_tokens) & ~jnp.all(done_b)

    def extend(state):
        index, token_b, done_b, new_bn, cache = state
        logits_bv, cache = stepper.step(token_b, cache)
        token_b = choose(logits_bv, index, done_b)
        new_bn = jax.lax.dynamic_update_slice(new_bn, token_b[:, None], (0, index))
        return index + 1, token_b, done_b | (token_b == eos_id), new_bn, cache

    logits_bv, cache = stepper.prefill(tokens_bt, lengths_b, max_new_tokens)
    token_b = choose(logits_bv, 0, jnp.zeros(batch, bool))
    new_bn = jnp.full((batch, max_new_tokens), eos_id, jnp.int32).at[:, 0].set(token_b)
    state = jnp.int32(1), token_b, token_b == eos_id, new_bn, cache
    _, _, _, new_bn, _ = jax.lax.while_loop(unfinished, extend, state)
    return new_bn, jnp.sum(jnp.cumprod(new_bn != eos_id, axis=1), axis=1)


def draw(
    logits_bv: jax.Array,
    rngs_b: jax.Array,
    *,
    temperature: jax.Array | float,
    top_k: jax.Array | int,
    top_p: jax.Array | float,
) -> jax.Array:
    """One token for each row, (b,) int32: argmax(logits) at temperature 0, otherwise drawn from

    softmax(TopP(TopK(logits / temperature))), all in float32; `top_k` 0 and `top_p` 1 keep every token.
    """

    def greedy(logits_bv: jax.Array) -> jax.Array:
        return jnp.argmax(logits_bv, axis=-1).astype(jnp.int32)

    def sample(logits_bv: jax.Array) -> jax.Array:
        return pick(_filtered(logits_bv, temperature, top_k, top_p), rngs_b)

    return jax.lax.cond(jnp.greater(temperature, 0), sample, greedy, logits_bv)


def probabilities(
    logits_bv: jax.Array,
    *,
    temperature: jax.Array | float,
    top_k: jax.Array | int,
    top_p: jax.Array | float,
) -> jax.Array:
    """How probably `draw` takes each token, (b, v) float32: at temperature 0, surely the likeliest."""

    def greedy(logits_bv: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jnp.argmax(logits_bv, axis=-1), logits_bv.shape[-1])

    def sample(logits_bv: jax.Array) -> jax.Array:
        return _filtered(logits_bv, temperature, top_k, top_p)

    return jax.lax.cond(jnp.greater(temperature, 0), sample, greedy, logits_bv)


def _filtered(logits_bv: jax.Array, temperature, top_k, top_p) -> jax.Array:
    logits_bv = logits_bv.astype(jnp.float32)
    # From the largest down, so that a temperature near 0 leaves that one instead of infinities.
    logits_bv = (logits_bv - jnp.max(logits_bv, axis=-1, keepdims=True)) / temperature
    k_given, p_given = jnp.greater(top_k, 0), jnp.less(top_p, 1)
    logits_bv = jax.lax.cond(k_given, lambda x: filters.top_k(x, top_k), lambda x: x, logits_bv)
    logits_bv = jax.lax.cond(p_given, lambda x: filters.top_p(x, top_p), lambda x: x, logits_bv)
    return jax.nn.softmax(logits_bv, axis=-1)


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


def complete(
    stepper: Stepper,
    prompts: Iterable[Sequence[int]],
    rng: jax.Array,
    config: SamplingConfig,
    *,
    bos_id: int,
    eos_id: int,
    max_length: int,
    batch_size: int = 16,
) -> Iterator[list[list[int]]]:
    """For each prompt, `config.num_samples` continuations without the prompt and the end.

    A prompt, which may be empty, is a document's beginning: `bos_id` goes before it. Of one with more than
    `max_length - max_new_tokens` tokens only the last so many are read. Prompts are taken `batch_size`
    rows at a time, padded to few different shapes; sample j of prompt i is drawn with
    `fold_in(fold_in(rng, i), j)`, whatever it shares a batch with.

    Raises:
      UserError: the model's `max_length` leaves no room for a prompt.
    """
    room = max_length - config.max_new_tokens
    if room < 1:
        raise UserError(
            f"max_new_tokens: {config.max_new_tokens} leaves no room for a prompt within the model's "
            f"max_length {max_length}; expected at most {max_length - 1}"
        )
    numbered = ((i, [bos_id, *prompt][-room:]) for i, prompt in enumerate(prompts))
    rows = ((i, j, prompt) for i, prompt in numbered for j in range(config.num_samples))

    def samples() -> Iterator[list[int]]:
        while batch := list(itertools.islice(rows, batch_size)):
            padded = batching.fill(batch, batch_size)
            prompt_b, sample_b = np.array([row[:2] for row in padded], np.uint32).T
            new_bn, new_lengths_b = generate(
                stepper,
                *batching.pad([prompt for _, _, prompt in padded], room, eos_id),
                _row_rngs(rng, prompt_b, sample_b),
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                eos_id=eos_id,
            )
            new, lengths = np.asarray(new_bn), np.asarray(new_lengths_b)
            yield from (new[row, : lengths[row]].tolist() for row in range(len(batch)))

    def grouped() -> Iterator[list[list[int]]]:
        flat = samples()
        while group := list(itertools.islice(flat, config.num_samples)):
            yield group

    return grouped()


@jax.jit
def _row_rngs(rng: jax.Array, prompt_b: jax.Array, sample_b: jax.Array) -> jax.Array:
    fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.vmap(jax.random.fold_in)(fold_in(rng, prompt_b), sample_b)
