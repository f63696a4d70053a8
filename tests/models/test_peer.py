"""The encoder-decoder and beam search beside Marian in Hugging Face transformers, where that is installed."""

import jax
import numpy as np
import pytest

from benchmarks import translation_speed as peer

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture
def small(monkeypatch, rng):
    for name, value in {"LAYERS": 2, "D": 32, "HEADS": 2, "FF": 64, "VOCAB": 50, "LENGTH": 10}.items():
        monkeypatch.setattr(peer, name, value)
    spread = {path: x if "norm" in path else 6 * x for path, x in peer.weights().items()}
    drawn = {path: x + 0.1 * rng.standard_normal(x.shape, np.float32) for path, x in spread.items()}
    monkeypatch.setattr(peer, "weights", lambda: drawn)


@pytest.mark.thorough
def test_both_learn_alike(small):
    (ours, _), (theirs, _) = peer.ours("train"), peer.transformers("train")
    # Adam divides gradients by their size: what is only rounding in one moves parameters in its first steps.
    np.testing.assert_allclose([ours() for _ in range(3)], [theirs() for _ in range(3)], rtol=5e-5)


@pytest.mark.thorough
def test_both_find_the_same(small):
    (ours, _), (theirs, _) = peer.ours("beam16"), peer.transformers("beam16")
    with jax.default_matmul_precision("highest"):
        assert np.mean(ours() == theirs()) > 0.9  # a tie may be broken otherwise
