"""Attention from scratch, step by step, up to the multi-head attention of `Attention`.

`notebooks/attention_from_scratch.ipynb` explains these functions. Each takes one sequence without a batch
axis (`jax.vmap` adds one) and its weights as arrays. Masks are True where a query may attend.
"""

import math

import jax
import jax.numpy as jnp

from transformer.errors import UserError
from transformer.layers.alignment import additive
from transformer.layers.attention.kernels.scores import masked_softmax
from transformer.layers.attention.masks import Mask


def self_attention(x_td: jax.Array, *, causal: bool = False) -> jax.Array:
    """y_t = sum_s softmax_s(x_t . x_s) x_s, without parameters: a mean of the vectors, weighted by
    similarity.

    (t, d) -> (t, d); with `causal` the sum and the softmax go over s <= t only.
    Source: Vaswani et al. 2017, section 3.2.1, with Q = K = V = x and neither projections nor scaling.
    """
    t = len(x_td)
    weights_ts = masked_softmax(x_td @ x_td.T, Mask(causal=causal).dense(t, t)[0, 0])
    return weights_ts @ x_td


def projected_self_attention(
    x_td: jax.Array, query_dk: jax.Array, key_dk: jax.Array, value_dk: jax.Array, *, causal: bool = False
) -> jax.Array:
    """y_t = sum_s softmax_s(q_t . k_s) v_s, with q = x W^Q, k = x W^K, v = x W^V.

    (t, d) -> (t, k).
    Source: Vaswani et al. 2017, section 3.2.2, one head, without scaling.
    """
    q_tk, k_sk, v_sk = x_td @ query_dk, x_td @ key_dk, x_td @ value_dk
    weights_ts = masked_softmax(q_tk @ k_sk.T, Mask(causal=causal).dense(len(q_tk), len(k_sk))[0, 0])
    return weights_ts @ v_sk


def scaled_scores(q_tk: jax.Array, k_sk: jax.Array) -> jax.Array:
    """Q K^T / sqrt(k): if the entries of q and k have variance 1, so have the scores, for any width k.

    (t, k) and (s, k) -> (t, s). Source: Vaswani et al. 2017, section 3.2.1, footnote 4.
    """
    return q_tk @ k_sk.T / math.sqrt(q_tk.shape[-1])


def softmax_slope(scores_ts: jax.Array) -> jax.Array:
    """1 - sum_s a_s^2 with a = softmax(scores): the size of the gradient of the softmax.

    It is the nuclear norm of the Jacobian d a / d scores = diag(a) - a a^T, which is symmetric and positive
    semidefinite, so the norm is its trace. 1 - 1/s for equal weights, 0 for a saturated softmax; multiplying
    the scores by more than 1 never increases it. (..., s) -> (...).
    """
    return 1 - jnp.sum(jax.nn.softmax(scores_ts) ** 2, axis=-1)


def look_up(q_tk: jax.Array, k_sk: jax.Array, v_sd: jax.Array, temperature: float) -> jax.Array:
    """sum_s softmax_s(q_t . k_s / temperature) v_s: a soft dictionary look-up.

    As the temperature goes to 0, the result is the value of the key with the largest dot product; as it
    grows, the mean of all values. At sqrt(k) this is the attention of Transformers. Queries (t, k), keys (s,
    k) and values (s, d) -> (t, d).

    Raises:
      UserError: the temperature is not positive.
    """
    if temperature <= 0:
        raise UserError(f"temperature: {temperature}; expected more than 0, of which 0 is only the limit")
    return jax.nn.softmax(q_tk @ k_sk.T / temperature) @ v_sd


def scaled_dot_product_attention(
    q_tk: jax.Array, k_sk: jax.Array, v_sk: jax.Array, allowed_ts: jax.Array
) -> jax.Array:
    """softmax(Q K^T / sqrt(k), -inf where not allowed) V; zeros for a query that may attend to no key.

    (t, k), (s, k), (s, k) and a mask that broadcasts to (t, s) -> (t, k).
    Source: Vaswani et al. 2017, equation 1 and section 3.2.3.
    """
    return masked_softmax(scaled_scores(q_tk, k_sk), allowed_ts) @ v_sk


def heads(
    x_td: jax.Array,
    memory_sd: jax.Array,
    query_dhk: jax.Array,
    key_dhk: jax.Array,
    value_dhk: jax.Array,
    allowed_ts: jax.Array,
) -> jax.Array:
    """head_h = Attention(x W_h^Q, m W_h^K, m W_h^V), where the memory m is x itself in self-attention.

    (t, d) and (s, d) -> (h, t, k). Source: Vaswani et al. 2017, section 3.2.2.
    """

    def head(query_dk: jax.Array, key_dk: jax.Array, value_dk: jax.Array) -> jax.Array:
        q_tk, k_sk, v_sk = x_td @ query_dk, memory_sd @ key_dk, memory_sd @ value_dk
        return scaled_dot_product_attention(q_tk, k_sk, v_sk, allowed_ts)

    return jax.vmap(head, in_axes=1)(query_dhk, key_dhk, value_dhk)


def join_by_concatenation(heads_htk: jax.Array, output_hkd: jax.Array) -> jax.Array:
    """Concat(head_1, ..., head_h) W^O, as the paper writes it. (h, t, k) -> (t, d).

    Source: Vaswani et al. 2017, section 3.2.2.
    """
    h, t, k = heads_htk.shape
    return heads_htk.swapaxes(0, 1).reshape(t, h * k) @ output_hkd.reshape(h * k, -1)


def join_by_sum(heads_htk: jax.Array, output_hkd: jax.Array) -> jax.Array:
    """sum_h head_h W_h^O, with W_h^O the rows of W^O for head h: equal to `join_by_concatenation`.

    (h, t, k) -> (t, d). Source: Elhage et al. 2021, "A mathematical framework for transformer circuits".
    """
    return jnp.sum(jnp.stack([head @ kernel for head, kernel in zip(heads_htk, output_hkd, strict=True)]), 0)


def additive_attention(
    q_td: jax.Array,
    memory_sd: jax.Array,
    query_df: jax.Array,
    key_df: jax.Array,
    score_f: jax.Array,
    allowed_ts: jax.Array,
) -> jax.Array:
    """sum_s softmax_s(v . tanh(q_t W^Q + m_s W^K)) m_s: scores by a network with one hidden layer.

    (t, d) and (s, d) -> (t, d); `allowed_ts` as above. Source: Bahdanau et al. 2015, section 3.1.
    """
    (scores_ts,) = additive((q_td @ query_df)[None], (memory_sd @ key_df)[None], score_f)
    return masked_softmax(scores_ts, allowed_ts) @ memory_sd
