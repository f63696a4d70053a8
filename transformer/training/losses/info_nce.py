"""InfoNCE: of all passages of a batch, which belongs to the query?"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from transformer.config import Bounded, PositiveFloat


@dataclass(frozen=True)
class ContrastiveLossConfig(Bounded):
    """The loss of each pair; see `info_nce`."""

    temperature: PositiveFloat = 0.05  # scores are divided by it; of a learnt one the initial value
    learnt_temperature: bool = False  # the temperature is a parameter
    symmetric: bool = False  # also which query a passage answers, among those of the batch
    # numbers of first dimensions that are trained as vectors of their own: (32, 64); (): only all of them
    widths: tuple[int, ...] = ()


def info_nce(
    query_bd: jax.Array,
    passage_bcd: jax.Array,
    query_ids_b: jax.Array,
    passage_ids_bc: jax.Array,
    scale: jax.Array | float,
    symmetric: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """-log p(own passage | query), (b,) in nats, and whether the own passage has the largest score, (b,):

    p = exp(s q_i . p_i0) / sum_jc exp(s q_i . p_jc), with s = `scale` = 1 / temperature.

    p_i0 is the passage of query i, p_i1 ... its hard negatives; all passages of the batch are candidates for
    all queries. Equal texts have equal ids. Left out of the sum are candidates that cannot be wrong: another
    copy of the own passage, the passage of another copy of the query, and padding, whose id is -1. With
    `symmetric` it is the mean of this and of -log p(own query | passage) over the queries of the batch.

    Source: van den Oord et al. 2018, equation 4; Radford et al. 2021 (CLIP), figure 3, for both directions.
    """
    b, c, d = passage_bcd.shape
    own_bn = jnp.arange(b * c) == c * jnp.arange(b)[:, None]
    options = {"precision": jax.lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    score_bn = scale * jnp.einsum("bd,nd->bn", query_bd, passage_bcd.reshape(b * c, d), **options)
    ids_n, own_ids_b = passage_ids_bc.reshape(b * c), passage_ids_bc[:, 0]
    answers_bbc = jnp.zeros((b, b, c), bool)
    answers_bbc = answers_bbc.at[:, :, 0].set(query_ids_b[:, None] == query_ids_b)
    no_negative_bn = (ids_n == own_ids_b[:, None]) | (ids_n < 0) | answers_bbc.reshape(b, b * c)
    loss_b, right_b = _own(score_bn, own_bn, no_negative_bn)
    if symmetric:
        equal_bb = (query_ids_b == query_ids_b[:, None]) | (own_ids_b == own_ids_b[:, None])
        back_bb, no_negative_bb = score_bn[:, ::c].T, equal_bb | (query_ids_b < 0)
        loss_b = (loss_b + _own(back_bb, jnp.eye(b, dtype=bool), no_negative_bb)[0]) / 2
    return loss_b, right_b


def _own(score_bn: jax.Array, own_bn: jax.Array, no_negative_bn: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log softmax of the own candidate of each row, and whether its score is the largest."""
    score_bn = jnp.where(no_negative_bn & ~own_bn, -jnp.inf, score_bn)
    own_b = jnp.sum(jnp.where(own_bn, score_bn, 0.0), axis=1)
    return jax.nn.logsumexp(score_bn, axis=1) - own_b, own_b >= jnp.max(score_bn, axis=1)
