"""Speculative decoding: a small model proposes, a large one checks several tokens in one pass."""

import functools

import jax
import jax.numpy as jnp

from transformer.decoding.sampling import draw, pick, probabilities
from transformer.decoding.stepper import Extender
from transformer.errors import UserError


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
    temperature: jax.Array | float = 1.0,
    top_k: jax.Array | int = 0,
    top_p: jax.Array | float = 1.0,
    min_p: jax.Array | float = 0.0,
    eos_id: jax.Array | int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What `generate` gives for `target`, whatever `draft` is, in fewer passes of `target`.

    In each round `draft` draws tokens d_1 ... d_n, n = `draft_tokens` + 1, one after another, and `target`
    reads all but the last in one pass. With p_i and q_i what the two give for the i-th, after `temperature`,
    `top_k`, `top_p` and `min_p`, d_i is kept with probability min(1, p_i(d_i) / q_i(d_i)), otherwise replaced
    by a draw from max(p_i - q_i, 0), normalised. It is distributed as p_i then; what follows is forgotten.
    A round ends at the first replacement in any row, which says nothing of the tokens after it.

    Returns the tokens, (b, max_new_tokens) int32, and lengths, (b,) int32, of `generate`, and the number of
    `target`'s passes after the prompt's, () int32. At temperature 0 the tokens are those of `generate`;
    else they have their distribution, and those of a row depend on its key, not on its batch.
    Source: Leviathan et al. 2023, section 2.3; Chen et al. 2023, algorithm 2.

    Raises:
      UserError: the two have different vocabularies, or `draft_tokens` is below 1.
    """
    if draft_tokens < 1:
        raise UserError(f"draft_tokens: {draft_tokens}; expected at least 1")
    if target.vocab_size != draft.vocab_size:
        raise UserError(
            f"vocab_size: the draft's {draft.vocab_size}; expected the target's {target.vocab_size}"
        )
    options: dict = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    (batch, _), n = tokens_bt.shape, draft_tokens + 1

    def keys(index: jax.Array | int) -> jax.Array:
        """The same keys wherever in a round a token falls: what is forgotten has decided nothing."""
        return jax.vmap(jax.random.fold_in)(rngs_b, lengths_b + index)

    def propose(index: jax.Array, token_b: jax.Array, cache):
        """n more tokens after `token_b`, the draft's probabilities of all, and its cache with all but the
        last, which it need not have read."""

        def one(carry, offset: jax.Array):
            token_b, cache = carry
            logits_bv, cache = draft.step(token_b, cache)
            q_bv = probabilities(logits_bv, **options)
            token_b = pick(q_bv, keys(index + offset))
            return (token_b, cache), (token_b, q_bv)

        (_, cache), (tokens_nb, q_nbv) = jax.lax.scan(one, (token_b, cache), jnp.arange(n))
        return tokens_nb.T, q_nbv.swapaxes(0, 1), cache

    def extend(state):
        index, token_b, done_b, new_bn, passes, target_cache, draft_cache = state
        proposed_bn, q_bnv, draft_cache = propose(index, token_b, draft_cache)
        read_bn = jnp.concatenate([token_b[:, None], proposed_bn[:, :-1]], axis=1)
        logits_bnv, target_cache = target.extend(read_bn, target_cache)
        p_bnv = probabilities(logits_bnv.reshape(batch * n, -1), **options).reshape(q_bnv.shape)

        kept_bn = _accepted(p_bnv, q_bnv, proposed_bn, jax.vmap(keys, out_axes=1)(index + jnp.arange(n)))
        # What comes after a row's end holds no other row up.
        ended_bn = done_b[:, None] | (jnp.cumsum(proposed_bn == eos_id, axis=1) > 0)
        kept_bn |= jnp.concatenate([done_b[:, None], ended_bn[:, :-1]], axis=1)
        kept_b = jnp.sum(jnp.cumprod(kept_bn, axis=1), axis=1)
        last = jnp.minimum(jnp.min(kept_b), draft_tokens)  # the place of this round's last token
        replaced_b = _replacement(p_bnv[:, last], q_bnv[:, last], keys(index + last))
        token_b = jnp.where(kept_b > last, proposed_bn[:, last], replaced_b)
        token_b = jnp.where(done_b, eos_id, token_b)

        round_bn = proposed_bn.at[:, last].set(token_b)
        ends_bn = (round_bn == eos_id) & (jnp.arange(n) <= last)
        new_bn = jax.lax.dynamic_update_slice(new_bn, round_bn, (0, index))
        return (
            index + last + 1,
            token_b,
            done_b | jnp.any(ends_bn, axis=1),
            new_bn,
            passes + 1,
            target.rewind(target_cache, draft_tokens - last),
            draft.rewind(draft_cache, draft_tokens - last),
        )

    def unfinished(state) -> jax.Array:
        index, _, done_b, *_ = state
        return (index < max_new_tokens) & ~jnp.all(done_b)

    # A round that begins with one token to go reads that many more.
    room = max_new_tokens + draft_tokens
    logits_bv, target_cache = target.prefill(tokens_bt, lengths_b, room, draft_tokens)
    _, draft_cache = draft.prefill(tokens_bt, lengths_b, room, draft_tokens)
    token_b = draw(logits_bv, keys(0), **options)
    new_bn = jnp.full((batch, room), eos_id, jnp.int32).at[:, 0].set(token_b)
    state = jnp.int32(1), token_b, token_b == eos_id, new_bn, jnp.int32(0), target_cache, draft_cache
    _, _, _, new_bn, passes, _, _ = jax.lax.while_loop(unfinished, extend, state)
    before_end_bn = jnp.cumprod(new_bn[:, :max_new_tokens] != eos_id, axis=1)
    new_bn = jnp.where(before_end_bn, new_bn[:, :max_new_tokens], eos_id)
    return new_bn, jnp.sum(before_end_bn, axis=1), passes


def _accepted(p_bnv: jax.Array, q_bnv: jax.Array, tokens_bn: jax.Array, rngs_bn: jax.Array) -> jax.Array:
    """True with probability min(1, p(token) / q(token)), (b, n)."""
    p_bn, q_bn = (jnp.take_along_axis(x, tokens_bn[..., None], axis=-1)[..., 0] for x in (p_bnv, q_bnv))
    # The key itself drew the token: what else is drawn for its place takes one made from it.
    uniform = jax.vmap(jax.vmap(lambda rng: jax.random.uniform(jax.random.fold_in(rng, 1))))
    return uniform(rngs_bn) * q_bn < p_bn


def _replacement(p_bv: jax.Array, q_bv: jax.Array, rngs_b: jax.Array) -> jax.Array:
    """A draw from max(p - q, 0), normalised, (b,) int32."""
    left_bv = jnp.maximum(p_bv - q_bv, 0.0)
    # Of two distributions that differ by rounding nothing may be left.
    left_bv = jnp.where(jnp.any(left_bv > 0, axis=-1, keepdims=True), left_bv, p_bv)
    return pick(left_bv, jax.vmap(jax.random.fold_in, in_axes=(0, None))(rngs_b, 2))
