import itertools

import numpy as np
import pytest

from tests.interpret.subjects import subject_of
from transformer.errors import UserError
from transformer.interpret.instruments.attention_rollout import attention_rollout, recorded_weights, table


def test_it_is_the_sum_over_all_paths(rng):
    """Each step of a path stays at its token with weight 1/2, or follows the attention of the layer."""
    subject = subject_of(rng, num_layers=3, kernel="reference")
    weights = [np.asarray(x, np.float64) for x in recorded_weights(subject)]
    assert len(weights) == 3
    rollout_nts = attention_rollout(recorded_weights(subject))[:, 0]
    means = [w_bhts[0].mean(axis=0) for w_bhts in weights]
    for t, s in [(7, 0), (5, 5), (6, 2), (2, 6)]:
        total = 0.0
        for between in itertools.product(range(8), repeat=2):
            path = (s, *between, t)
            steps = [(m[end, start] + (start == end)) / 2 for m, start, end in zip(means, path, path[1:])]  # noqa: B905
            total += np.prod(steps)
        np.testing.assert_allclose(rollout_nts[-1, t, s], total, atol=1e-5)
    np.testing.assert_allclose(rollout_nts.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.thorough
def test_a_table_has_a_cell_for_each_pair_of_tokens_or_for_each_patch(rng):
    subject = subject_of(rng)
    rollout_ts = np.asarray(attention_rollout(recorded_weights(subject))[-1, 0])
    np.testing.assert_allclose(table(subject).values_rc, rollout_ts)
    subject.__dict__["prompt"] = subject.prompt._replace(grid=(2, 4))
    np.testing.assert_allclose(table(subject).values_rc, rollout_ts.mean(axis=0).reshape(2, 4), rtol=1e-6)
    subject.__dict__["prompt"] = subject.prompt._replace(grid=(1, 7))
    np.testing.assert_allclose(table(subject).values_rc, rollout_ts[0, 1:].reshape(1, 7), rtol=1e-6)


def test_layers_without_weights_are_refused(rng):
    subject = subject_of(rng, mixer="gated_linear")
    with pytest.raises(UserError, match=r"^attention_rollout: 0 of 2 layers have attention weights"):
        table(subject)
