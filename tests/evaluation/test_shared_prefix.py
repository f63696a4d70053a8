"""Continuations of the same tokens are scored as each would be by itself, and the tokens read once."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.language_modeling import LanguageModeling, LanguageModelingConfig
from tests.parameters import random_params
from transformer.config import from_values
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.evaluation import shared_prefix
from transformer.evaluation.scoring import Row, score_rows
from transformer.evaluation.shared_prefix import score_continuations

LONGEST = 24

KINDS = {
    "rope": {},
    "learned": {"position": "learned"},
    "window": {"pattern": "window", "pattern_size": 5, "num_kv_heads": 1},
    "latent": {"mixer": "latent"},
    "linear": {"mixer": "linear", "position": "none"},
    "some linear": {
        "layers": ("linear", "full"),
        "layer_kinds": {"linear": {"mixer": "linear", "position": "none"}, "full": {}},
    },
}


def make(rng, **keys):
    model = {
        **{"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 24, "max_length": LONGEST},
        **{"vocab_multiple": 16},
    }
    values = {"experiment": "language_modeling", "model": model | keys, "data": {"sequence_length": LONGEST}}
    experiment = LanguageModeling(from_values(LanguageModelingConfig, values), Tokenizer.blank(29))
    return experiment, random_params(rng, experiment.model, jnp.zeros((1, 1), jnp.int32))


def drawn(rng):
    """Rows of which many start alike; some are alone, some as long as the model reads, one a repetition."""
    rows = []
    for length in (1, 1, 3, 7, 7, 12, 22, 23):
        prefix = rng.integers(0, 29, length).tolist()
        for _ in range(int(rng.choice([1, 2, 3, 5]))):
            most = LONGEST + 1 - length
            rows.append(Row([*prefix, *rng.integers(0, 29, rng.integers(1, min(most, 7) + 1))], length))
    rows += [rows[0], Row(rows[-1].tokens, rows[-1].start, unread=3)]
    return [rows[i] for i in rng.permutation(len(rows))]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[] if kind == "window" else pytest.mark.thorough)
    for kind in KINDS
])  # fmt: skip
def test_scores_are_those_of_each_row_by_itself(kind, rng):
    experiment, params = make(rng, **KINDS[kind])
    rows = drawn(rng)
    found = score_continuations(experiment, params, rows)
    for score, wanted in zip(found, score_rows(experiment, params, rows), strict=True):
        assert score.log_likelihood == pytest.approx(wanted.log_likelihood, abs=1e-4)
        assert score[1:] == wanted[1:]


@pytest.mark.thorough
def test_a_prefix_is_read_once_for_all_its_continuations(rng, monkeypatch):
    experiment, params = make(rng)
    read, alone = [], []
    likelihood, rows_alone = shared_prefix._likelihood, score_rows
    monkeypatch.setattr(
        shared_prefix,
        "_likelihood",
        lambda stepper, tokens, *more: read.append(tokens.shape) or likelihood(stepper, tokens, *more),
    )
    monkeypatch.setattr(
        shared_prefix,
        "score_rows",
        lambda experiment, params, rows: alone.extend(rows) or rows_alone(experiment, params, rows),
    )
    prefixes = [rng.integers(0, 29, 9).tolist() for _ in range(4)]
    rows = [Row([*prefix, i, i + 1], 9) for prefix in prefixes for i in range(3)]
    rows += [Row([*rng.integers(0, 29, 5)], 2), Row([*prefixes[0], 28, 28], 9)]
    score_continuations(experiment, params, rows)
    assert [row.tokens for row in alone] == [rows[-2].tokens]
    assert read == [(4, 16)]


def test_one_of_all_tokens_is_the_likeliest(rng):
    experiment, params = make(rng)
    rows = [Row([3, 5, token], 2) for token in range(29)] + [Row([3, 5, 1, 2, 3], 2)]
    found = score_continuations(experiment, params, rows)
    assert [score.greedy for score in found[:-1]].count(True) == 1
    assert found[int(np.argmax([score.log_likelihood for score in found[:-1]]))].greedy
    assert np.exp([score.log_likelihood for score in found[:-1]]).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.thorough
def test_fewer_bits_are_not_for_likelihoods(rng):
    experiment, params = make(rng)
    rows = drawn(rng)
    wanted = [score.log_likelihood for score in score_continuations(experiment, params, rows)]
    values = {"experiment": "language_modeling", "sample": {"weights": "int8", "cache": "int8"}}
    config = from_values(LanguageModelingConfig, values)
    other, _ = make(rng)
    other.config = type(other.config)(**vars(other.config) | {"sample": config.sample})
    found = [score.log_likelihood for score in score_continuations(other, params, rows)]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
