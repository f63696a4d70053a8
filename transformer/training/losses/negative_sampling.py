"""Negative-sampling loss of word vectors (skip-gram)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from transformer.config import Bounded, PositiveFloat
from transformer.training.metrics import Sum


@dataclass(frozen=True)
class NegativeSamplingConfig(Bounded):
    """The negative-sampling loss."""

    negatives: PositiveFloat = 5.0  # weight of the negative term, negative samples per pair (Mikolov's k)


def negative_sampling(
    near_bts: jax.Array, noise_btk: jax.Array, pairs_bts: jax.Array, negatives: float
) -> Sum:
    """-log s(near) - negatives E[log s(-noise)] of each pair, in nats; s is the logistic function.

    `near_bts` are the scores of word t with word s; `pairs_bts` says which s are in t's window. `noise_btk`
    are the scores of word t with the negative samples, whose mean estimates the expectation. Drawing k =
    `negatives` samples for each pair and summing (Mikolov et al. 2013b, equation 4) has the same expectation.
    """
    attraction = Sum.of(jax.nn.softplus(-near_bts), pairs_bts)
    repulsion = Sum.of(jnp.mean(jax.nn.softplus(noise_btk), axis=-1), jnp.sum(pairs_bts, axis=-1))
    return Sum(attraction.total + negatives * repulsion.total, attraction.weight)


def pairs(segments_bt: jax.Array, reach_bt: jax.Array) -> jax.Array:
    """(b, t, s): whether word s is in the window of word t, that is at most `reach` positions away, not t
    itself, and in the same segment other than 0."""
    place_t = jnp.arange(segments_bt.shape[1])
    distance_ts = jnp.abs(place_t[:, None] - place_t)
    same_bts = (segments_bt[:, :, None] == segments_bt[:, None, :]) & (segments_bt[:, :, None] > 0)
    return same_bts & (distance_ts > 0) & (distance_ts <= reach_bt[:, :, None])
