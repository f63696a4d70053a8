"""Linear regression in context."""

import numpy as np

from transformer.data.loader import HostBatch
from transformer.data.tasks.base import Task, generators


class LinearRegression(Task):
    """n examples (x_i, w . x_i + noise e_i) and a query (x, 0), whose target is w . x; w, x_i, x and e_i are
    standard normal, and w is drawn for each row.

    Source: Garg et al. 2022, section 3; Zhang et al. 2023, "Trained Transformers learn linear models
    in-context", section 2.
    """

    def __init__(self, dimension: int = 5, examples: int = 20, noise: float = 0.0) -> None:
        self.dimension, self.examples, self.noise = dimension, examples, noise

    def batch(self, split: str, rows_b: np.ndarray) -> HostBatch:
        """`tokens` (b, n + 1, d + 1), `targets` (b,) and `weights` (b,), 1; all float32."""
        n, d = self.examples, self.dimension
        drawn = np.stack([rng.standard_normal((n + 2, d + 1)) for rng in generators(split, rows_b)])
        w_bd1, x_btd, noise_bt = drawn[:, -1, :d, None], drawn[:, :-1, :d], drawn[:, :-1, d]
        y_bt = (x_btd @ w_bd1)[..., 0]
        seen_bt = y_bt + self.noise * noise_bt
        seen_bt[:, -1] = 0
        return {
            "tokens": np.concatenate([x_btd, seen_bt[..., None]], axis=-1).astype(np.float32),
            "targets": y_bt[:, -1].astype(np.float32),
            "weights": (rows_b >= 0).astype(np.float32),
        }


def least_risk(dimension: int, examples: int, noise: float = 0.0) -> float:
    """d (d + 1 + s^2) / (n + d + 1 + s^2) with noise s: the least expected squared error of a layer of linear
    attention.

    It predicts c x . (1/n) sum_i y_i x_i. As E[C] = I and E[C^2] = (1 + (d + 1) / n) I for C = (1/n) sum_i
    x_i x_i^T, the error is d (c^2 (1 + (d + 1 + s^2) / n) - 2 c + 1), least at c = n / (n + d + 1 + s^2).
    Source: Zhang et al. 2023, theorem 4.1, for covariance I without noise; Ahn et al. 2023, theorem 1.
    """
    excess = dimension + 1 + noise**2
    return dimension * excess / (examples + excess)
