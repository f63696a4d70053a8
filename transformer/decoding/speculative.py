"""Speculative decoding: a small draft model proposes tokens, the target model checks several in one pass."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.decoding.generation import DecodeState, Ends, begin, filler, is_end, until_end
from transformer.decoding.sampling import pick, probabilities
from transformer.decoding.stepper import Extender
from transformer.errors import UserError


@struct.dataclass
class SpeculativePair:
    """A target and a draft model, which proposes `draft_tokens` + 1 tokens in each round."""

    target: Extender
    draft: Extender
    draft_tokens: int = struct.field(pytree_node=False, default=4)

    def prefill(self, tokens_bt: jax.Array, lengths_b: jax.Array, room: int) -> tuple[jax.Array, Any]:
        """As `Stepper.prefill` for both models: the target's logits, and a cache of both caches and the
        number of the target's passes so far, ().

        Raises:
          UserError: the two have different vocabularies, or `draft_tokens` is below 1.
        """
        target, draft, rewound = self.target, self.draft, self.draft_tokens
        if rewound < 1:
            raise UserError(f"draft_tokens: {rewound}; expected at least 1")
        if target.vocab_size != draft.vocab_size:
            raise UserError(
                f"vocab_size: the draft's {draft.vocab_size}; expected the target's {target.vocab_size}"
            )
        # A round with one token left still reads `draft_tokens` more.
        logits_bv, target_cache = target.prefill(tokens_bt, lengths_b, room + rewound, rewound)
        _, draft_cache = draft.prefill(tokens_bt, lengths_b, room + rewound, rewound)
        return logits_bv, (target_cache, draft_cache, jnp.int32(0))

    def grow(self, cache: Any, more: int) -> Any:
        """As `Stepper.grow` for both models."""
        target_cache, draft_cache, passes = cache
        target_cache = self.target.grow(target_cache, more, self.draft_tokens)
        return target_cache, self.draft.grow(draft_cache, more, self.draft_tokens), passes


@functools.partial(jax.jit, static_argnames="n", donate_argnames="state")
def advance(
    pair: SpeculativePair,
    state: DecodeState,
    rngs_b: jax.Array,
    *,
    n: int,
    eos_id: Ends,
    **options,
) -> tuple[jax.Array, DecodeState]:
    """At least the next n tokens of each row, unless all have ended, and the state after them.

    The tokens are (b, n + `draft_tokens`) int32; the valid ones are as many as the state's `index` has grown
    by.

    In each round the draft model draws tokens d_1 ... d_m, m = `draft_tokens` + 1, one after another, and the
    target reads all but the last in one pass. With p_i and q_i the distributions of the i-th token by target
    and draft, after `temperature`, `top_k`, `top_p` and `min_p`, d_i is accepted with probability min(1,
    p_i(d_i) / q_i(d_i)), and otherwise replaced by a draw from max(p_i - q_i, 0), normalised, so that it is
    distributed as p_i. Tokens after a replacement are dropped. A round ends at the first replacement in any
    row, which does not depend on the tokens after it.

    Source: Leviathan et al. 2023, section 2.3; Chen et al. 2023, algorithm 2.
    """
    target, draft, first = pair.target, pair.draft, state.index
    batch, m = state.token_b.shape[0], pair.draft_tokens + 1
    offsets_m = jnp.arange(m)

    def propose(state: DecodeState) -> tuple[jax.Array, jax.Array, jax.Array]:
        """m more tokens, the draft's distribution of each, and its cache without the last one, which it has
        not read."""

        def one(carry, offset: jax.Array):
            token_b, cache = carry
            logits_bv, cache = draft.step(token_b, cache)
            q_bv = probabilities(logits_bv, **options)
            token_b = pick(q_bv, state.keys(rngs_b, offset))
            return (token_b, cache), (token_b, q_bv)

        (_, cache), (tokens_mb, q_mbv) = jax.lax.scan(one, (state.token_b, state.cache[1]), offsets_m)
        return tokens_mb.T, q_mbv.swapaxes(0, 1), cache

    def play_round(carry: tuple[jax.Array, DecodeState]) -> tuple[jax.Array, DecodeState]:
        new_bn, state = carry
        proposed_bm, q_bmv, draft_cache = propose(state)
        read_bm = jnp.concatenate([state.token_b[:, None], proposed_bm[:, :-1]], axis=1)
        logits_bmv, target_cache = target.extend(read_bm, state.cache[0])
        p_bmv = probabilities(logits_bmv.reshape(batch * m, -1), **options).reshape(q_bmv.shape)

        keys_bm = jax.vmap(lambda offset: state.keys(rngs_b, offset), out_axes=1)(offsets_m)
        accepted_bm = _accepted(p_bmv, q_bmv, proposed_bm, keys_bm)
        # Proposals after a row's end or limit count as accepted, so that they do not end the round.
        is_end_bm = is_end(proposed_bm, eos_id)
        ended_bm = state.done_b[:, None] | (jnp.cumsum(is_end_bm, axis=1) - is_end_bm > 0)
        accepted_bm |= ended_bm | (state.index + offsets_m >= state.limits_b[:, None])
        count_b = jnp.sum(jnp.cumprod(accepted_bm, axis=1), axis=1, dtype=jnp.int32)
        last = jnp.minimum(jnp.min(count_b), pair.draft_tokens)  # index of the last token of this round
        replaced_b = _replacement(p_bmv[:, last], q_bmv[:, last], state.keys(rngs_b, last))
        token_b = jnp.where(count_b > last, proposed_bm[:, last], replaced_b)

        round_bm = jnp.where(state.done_b[:, None], filler(eos_id), proposed_bm.at[:, last].set(token_b))
        ends_b = jnp.any(is_end(round_bm, eos_id) & (offsets_m <= last), axis=1)
        index, back = state.index + last + 1, pair.draft_tokens - last
        cache = target.rewind(target_cache, back), draft.rewind(draft_cache, back), state.cache[2] + 1
        done_b = state.done_b | ends_b | (index >= state.limits_b)
        new_bn = jax.lax.dynamic_update_slice_in_dim(new_bn, round_bm, state.index - first, axis=1)
        token_b = round_bm[:, last]
        return new_bn, dataclasses.replace(state, token_b=token_b, done_b=done_b, index=index, cache=cache)

    def unfinished(carry: tuple[jax.Array, DecodeState]) -> jax.Array:
        _, state = carry
        return (state.index < first + n) & ~jnp.all(state.done_b)

    new_bn = jnp.full((batch, n + pair.draft_tokens), filler(eos_id), jnp.int32)
    return jax.lax.while_loop(unfinished, play_round, (new_bn, state))


@functools.partial(jax.jit, static_argnames=("max_new_tokens", "draft_tokens"))
def generate_speculative(
    target: Extender,
    draft: Extender,
    tokens_bt: jax.Array,
    lengths_b: jax.Array,
    rngs_b: jax.Array,
    *,
    max_new_tokens: int,
    draft_tokens: int = 4,
    eos_id: Ends = -1,
    **options,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Generates with `target` and `draft`, in fewer passes of `target` than `generate`.

    Returns tokens, (b, max_new_tokens) int32, and lengths, (b,) int32, as `generate`, and the number of
    passes of `target` after the prompt, () int32. At temperature 0 the tokens are those of `generate`, up to
    ties within rounding; otherwise they have the same distribution, and depend on the key of the row, not on
    its batch. Raises as `SpeculativePair.prefill`.
    """
    pair, new = SpeculativePair(target, draft, draft_tokens), max_new_tokens
    limits_b = jnp.full(tokens_bt.shape[0], new)
    options |= {"eos_id": eos_id}
    arguments = {"room": new, "limits_b": limits_b, "positions_b": lengths_b} | options
    state = begin(pair, tokens_bt, lengths_b, rngs_b, **arguments)
    first_b = state.token_b
    rest_bn, state = advance(pair, state, rngs_b, n=new - 1, **options)
    new_bn = jnp.concatenate([first_b[:, None], rest_bn], axis=1)[:, :new]
    return *until_end(new_bn, eos_id), state.cache[2]


def _accepted(p_bmv: jax.Array, q_bmv: jax.Array, tokens_bm: jax.Array, rngs_bm: jax.Array) -> jax.Array:
    """True with probability min(1, p(token) / q(token)), (b, m)."""
    p_bm, q_bm = (jnp.take_along_axis(x, tokens_bm[..., None], axis=-1)[..., 0] for x in (p_bmv, q_bmv))
    # The key itself drew the proposal; other draws for the same index need a derived key.
    uniform = jax.vmap(jax.vmap(lambda rng: jax.random.uniform(jax.random.fold_in(rng, 1))))
    return uniform(rngs_bm) * q_bm < p_bm


def _replacement(p_bv: jax.Array, q_bv: jax.Array, rngs_b: jax.Array) -> jax.Array:
    """A draw from max(p - q, 0), normalised, (b,) int32."""
    left_bv = jnp.maximum(p_bv - q_bv, 0.0)
    # If p and q differ only by rounding, max(p - q, 0) may be zero everywhere.
    left_bv = jnp.where(jnp.any(left_bv > 0, axis=-1, keepdims=True), left_bv, p_bv)
    return pick(left_bv, jax.vmap(jax.random.fold_in, in_axes=(0, None))(rngs_b, 2))
