"""InfoNCE against a loop over queries and candidates in float64."""

import jax
import numpy as np
import pytest

from transformer.training.losses.info_nce import info_nce

B, C, D = 6, 3, 5


def by_hand(query, passage, query_ids, passage_ids, scale, symmetric):
    """(b,), and whether the own passage scores best."""
    losses, right = [], []
    candidates = [(j, k) for j in range(B) for k in range(C)]
    for i in range(B):
        scores = {
            (j, k): scale * float(query[i] @ passage[j, k])
            for j, k in candidates
            if (j, k) == (i, 0)
            or not (
                passage_ids[j, k] < 0
                or passage_ids[j, k] == passage_ids[i, 0]
                or (k == 0 and query_ids[j] == query_ids[i])
            )
        }
        forward = np.log(sum(np.exp(score) for score in scores.values())) - scores[i, 0]
        right.append(scores[i, 0] >= max(scores.values()))
        back = {
            j: scale * float(query[j] @ passage[i, 0])
            for j in range(B)
            if j == i
            or not (
                query_ids[j] < 0 or query_ids[j] == query_ids[i] or passage_ids[j, 0] == passage_ids[i, 0]
            )
        }
        backward = np.log(sum(np.exp(score) for score in back.values())) - back[i]
        losses.append((forward + backward) / 2 if symmetric else forward)
    return np.array(losses), np.array(right)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("copies", [False, True])
def test_it_is_the_sum_over_candidates(symmetric, copies, rng):
    query, passage = rng.normal(size=(B, D)), rng.normal(size=(B, C, D))
    query_ids, passage_ids = np.arange(B), np.arange(B * C).reshape(B, C)
    if copies:
        query_ids[4], passage_ids[3, 0] = query_ids[1], passage_ids[0, 0]
        passage_ids[2, 1], passage_ids[1, 2] = passage_ids[0, 0], -1
        query_ids[5], passage_ids[5] = -1, -1
    expected, best = by_hand(query, passage, query_ids, passage_ids, 3.0, symmetric)
    arrays = (np.float32(query), np.float32(passage), np.int32(query_ids), np.int32(passage_ids))
    loss, right = jax.jit(info_nce, static_argnums=(4, 5))(*arrays, 3.0, symmetric)
    real = query_ids >= 0
    np.testing.assert_allclose(loss[real], expected[real], rtol=1e-5)
    np.testing.assert_array_equal(right[real], best[real])
    assert np.isfinite(loss).all()
    gradient = jax.grad(lambda q: info_nce(q, *arrays[1:], 3.0, symmetric)[0].sum())(arrays[0])
    assert np.isfinite(gradient).all()


def test_what_is_left_out_has_no_gradient(rng):
    """A copy of the own passage cannot be wrong: moving it changes nothing of the row."""
    query, passage = np.float32(rng.normal(size=(2, D))), np.float32(rng.normal(size=(2, 1, D)))
    ids = np.arange(2, dtype=np.int32), np.zeros((2, 1), np.int32)
    loss = lambda p: info_nce(query, p, *ids, 2.0)[0].sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(loss)(passage), 0)
