"""Scaling laws: how the loss falls with parameters and tokens, and how a budget is divided between them.

    L(N, D) = E + A / N^a + B / D^b

N is the number of multiplications of a token, that is its training FLOPs / 6: the kernels, the output matrix
and attention (see `transformer.training.logging.throughput`). So a budget is C = 6 N D without a remainder,
and the exponents of N* and D* add up to one. Counting attention and the output matrix matters for small
models (Porian et al. 2024, "Resolving discrepancies in compute-optimal scaling of language models").

Two ways to fit it (Hoffmann et al. 2022, "Training compute-optimal large language models", section 3):
`IsoFlop`, their approach 2, has a parabola in log N for each budget, and a power law through the minima;
`Law`, their approach 3, is L(N, D) itself. Parabolas are biased where sizes are not centred on the minimum.
"""

import dataclasses
import math

import numpy as np

HUBER = 0.01
"""Errors of log L beyond this count linearly, so that a run that went wrong does not decide. Hoffmann et al.
take 0.001, less than runs differ by their seed."""

SAMPLES = 1000
"""The number of bootstrap samples."""

LEVEL = 0.9
"""The probability of an interval."""

ROUNDS = 200
"""The most steps of a fit."""

ENOUGH = 1e-8
"""A fit ends when a step would lower its loss by less than this share."""

STARTS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5)
"""The exponents a and b from which a fit is started."""


@dataclasses.dataclass(frozen=True)
class Law:
    """L(N, D) of one fit, or of each bootstrap sample: arrays of the same shape (r,)."""

    log_e: np.ndarray
    log_a: np.ndarray
    log_b: np.ndarray
    a: np.ndarray
    b: np.ndarray

    def loss(self, n: float, d: float) -> np.ndarray:
        """L(N, D)."""
        terms = (
            self.log_e,
            self.log_a - self.a * math.log(n),
            self.log_b - self.b * math.log(d),
        )
        return np.exp(np.logaddexp.reduce(terms))

    @property
    def exponent(self) -> np.ndarray:
        """b / (a + b), that of N* ~ C^x; that of D* is 1 - x."""
        return self.b / (self.a + self.b)

    def best_n(self, c: float) -> np.ndarray:
        """N*(C) = (a A / (b B))^(1 / (a + b)) (C / 6)^(b / (a + b))."""
        log_g = (np.log(self.a / self.b) + self.log_a - self.log_b) / (self.a + self.b)
        return np.exp(log_g + self.exponent * math.log(c / 6))

    def least_loss(self, c: float) -> np.ndarray:
        """L(N*(C), D*(C))."""
        n = np.log(self.best_n(c))
        terms = (self.log_e, self.log_a - self.a * n, self.log_b - self.b * (math.log(c / 6) - n))
        return np.exp(np.logaddexp.reduce(terms))


def fit_law(n_k: np.ndarray, d_k: np.ndarray, loss_rk: np.ndarray) -> Law:
    """The law that minimises the Huber loss of log L over k runs, for each row of losses.

    Starts from the best of a grid of (a, b), where E, A and B are linear (variable projection; Golub &
    Pereyra 1973), and continues with Levenberg-Marquardt in all five until nothing moves: fits that were
    stopped early gave wrong exponents (Besiroglu et al. 2024, "Chinchilla scaling: a replication attempt").
    """
    x_k, y_k = np.log(n_k), np.log(d_k)
    centre = x_k.mean(), y_k.mean()
    x_k, y_k = x_k - centre[0], y_k - centre[1]
    p_r5 = _refined(_start(x_k, y_k, loss_rk), x_k, y_k, np.log(loss_rk))
    log_e, log_a, a, log_b, b = p_r5.T
    return Law(log_e, log_a + a * centre[0], log_b + b * centre[1], a, b)


def _start(x_k: np.ndarray, y_k: np.ndarray, loss_rk: np.ndarray) -> np.ndarray:
    """(r, 5): log E, log A, a, log B, b, by least squares of L at the best exponents of the grid."""
    least, floor = np.full(len(loss_rk), np.inf), 0.05 * loss_rk.min(axis=1)
    best = np.zeros((len(loss_rk), 5))
    for a in STARTS:
        for b in STARTS:
            basis_k3 = np.stack([np.ones_like(x_k), np.exp(-a * x_k), np.exp(-b * y_k)], axis=1)
            parts_r3 = np.maximum(loss_rk @ np.linalg.pinv(basis_k3).T, floor[:, None])
            error = np.sum((np.log(parts_r3 @ basis_k3.T) - np.log(loss_rk)) ** 2, axis=1)
            e, p, q = np.log(parts_r3).T
            new = np.stack([e, p, np.full_like(e, a), q, np.full_like(e, b)], axis=1)
            best = np.where((error < least)[:, None], new, best)
            least = np.minimum(error, least)
    return best


def _refined(p_r5: np.ndarray, x_k: np.ndarray, y_k: np.ndarray, log_rk: np.ndarray) -> np.ndarray:
    """Levenberg-Marquardt on the Huber loss, for all rows at once."""
    damping_r = np.full(len(p_r5), 1e-3)
    error_rk, slope_rk5 = _errors(p_r5, x_k, y_k, log_rk)
    value_r = _huber(error_rk)
    for _ in range(ROUNDS):
        weight_rk = np.minimum(1, HUBER / np.maximum(np.abs(error_rk), 1e-300))
        square_r55 = np.einsum("rki,rk,rkj->rij", slope_rk5, weight_rk, slope_rk5)
        down_r5 = np.einsum("rki,rk,rk->ri", slope_rk5, weight_rk, error_rk)
        scale_r5 = np.einsum("rii->ri", square_r55) + 1e-12
        square_r55 = square_r55 + damping_r[:, None, None] * scale_r5[:, None] * np.eye(5)
        step_r5 = np.linalg.solve(square_r55, down_r5[..., None])[..., 0]
        step_r5 /= np.maximum(1, np.abs(step_r5).max(axis=1, keepdims=True))
        if np.all(np.sum(down_r5 * step_r5, axis=1) < ENOUGH * value_r):
            break
        tried_r5 = p_r5 - step_r5
        tried_r5[:, 2::2] = np.clip(tried_r5[:, 2::2], 0.01, 5)
        new_rk, new_rk5 = _errors(tried_r5, x_k, y_k, log_rk)
        new_r = _huber(new_rk)
        better_r = new_r < value_r
        p_r5 = np.where(better_r[:, None], tried_r5, p_r5)
        error_rk = np.where(better_r[:, None], new_rk, error_rk)
        slope_rk5 = np.where(better_r[:, None, None], new_rk5, slope_rk5)
        value_r = np.where(better_r, new_r, value_r)
        damping_r = np.clip(np.where(better_r, damping_r / 5, damping_r * 4), 1e-12, 1e9)
    return p_r5


def _errors(
    p_r5: np.ndarray, x_k: np.ndarray, y_k: np.ndarray, log_rk: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of log L (r, k), and their derivatives by the parameters (r, k, 5)."""
    e, p, a, q, b = (column[:, None] for column in p_r5.T)
    terms = np.stack(np.broadcast_arrays(e + 0 * x_k, p - a * x_k, q - b * y_k))
    total_rk = np.logaddexp.reduce(terms)
    of_e, of_a, of_b = np.exp(terms - total_rk)
    slope_rk5 = np.stack([of_e, of_a, -x_k * of_a, of_b, -y_k * of_b], axis=-1)
    return total_rk - log_rk, slope_rk5


def _huber(error_rk: np.ndarray) -> np.ndarray:
    size = np.abs(error_rk)
    return np.sum(np.where(size < HUBER, size**2 / 2, HUBER * (size - HUBER / 2)), axis=1)


@dataclasses.dataclass(frozen=True)
class IsoFlop:
    """Parabolas log L = c_0 + c_1 u + c_2 u^2 in u = log N - `middle`, one for each budget: (r, c, 3); `ends`
    are the least and the greatest log N."""

    budget_c: np.ndarray
    middle_c: np.ndarray
    ends_2c: np.ndarray
    parts_rc3: np.ndarray

    @property
    def log_best_rc(self) -> np.ndarray:
        """log N*, the minimum of each parabola; NaN for one that has none."""
        slope, bend = self.parts_rc3[..., 1], self.parts_rc3[..., 2]
        return self.middle_c - np.where(bend > 0, slope / np.where(bend > 0, 2 * bend, 1), np.nan)

    @property
    def between_c(self) -> np.ndarray:
        """Whether the minimum of each budget's parabola, in the first row, is between the sizes."""
        low_c, high_c = self.ends_2c
        return (low_c < self.log_best_rc[0]) & (self.log_best_rc[0] < high_c)

    @property
    def exponent(self) -> np.ndarray:
        """x of N* ~ C^x by least squares of the logarithms; that of D* is 1 - x."""
        z_c = np.log(self.budget_c) - np.log(self.budget_c).mean()
        return self.log_best_rc @ z_c / np.sum(z_c**2)

    def best_n(self, c: float) -> np.ndarray:
        """N*(C) of the power law."""
        away = math.log(c) - np.log(self.budget_c).mean()
        return np.exp(self.log_best_rc.mean(axis=1) + self.exponent * away)

    def log_loss(self, n: np.ndarray, curve: int) -> np.ndarray:
        """log L of a budget's parabola, for each row: (r, n)."""
        u = np.log(n) - self.middle_c[curve]
        return np.stack([np.ones_like(u), u, u**2], axis=-1) @ self.parts_rc3[:, curve].T


def fit_isoflop(n_k: np.ndarray, budget_k: np.ndarray, loss_rk: np.ndarray) -> IsoFlop:
    """A parabola for the runs of each budget, by least squares of log L, for each row of losses."""
    budgets, middles, ends, parts = np.unique(budget_k), [], [], []
    for budget in budgets:
        at_budget = budget_k == budget
        u = np.log(n_k[at_budget])
        middles.append(u.mean())
        ends.append([u.min(), u.max()])
        parts.append(np.log(loss_rk[:, at_budget]) @ np.linalg.pinv(_parabola(u - u.mean())).T)
    return IsoFlop(budgets, np.array(middles), np.array(ends).T, np.stack(parts, axis=1))


def _parabola(u: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(u), u, u**2], axis=1)


@dataclasses.dataclass(frozen=True)
class Study:
    """Both fits of the runs, with the fits of bootstrap samples, and the noise of log L."""

    law: Law
    laws: Law
    noise: float
    noises: np.ndarray
    isoflop: IsoFlop
    isoflops: IsoFlop

    def forecast(self, n: float, d: float, seed: int = 1) -> tuple[float, float, float]:
        """The loss of a run to come, and the ends of its interval: uncertain are the law and the run's own
        noise."""
        drawn = np.random.default_rng(seed).normal(size=self.noises.shape)
        return float(self.law.loss(n, d)[0]), *interval(self.laws.loss(n, d) * np.exp(self.noises * drawn))

    def band(self, c: np.ndarray) -> np.ndarray:
        """(2, c): the ends of the interval of N*(C) for each budget."""
        return np.array([interval(self.laws.best_n(budget)) for budget in c]).T


def study(
    n_k: np.ndarray, d_k: np.ndarray, budget_k: np.ndarray, loss_k: np.ndarray, samples: int = SAMPLES
) -> Study:
    """Fits the runs, and bootstrap samples of them.

    A sample has the fitted losses and, as errors, those of runs drawn with replacement, scaled to the
    variance by k - p degrees of freedom times (k - p) / chi^2: of few runs the noise is not known well, and
    intervals without this factor would be too narrow, as those by a normal distribution in place of
    Student's are. Drawing whole runs instead would leave budgets without a parabola. Source: Davison &
    Hinkley 1997, "Bootstrap methods and their application", section 6.3.
    """
    rng = np.random.default_rng(0)
    law = fit_law(n_k, d_k, loss_k[None])
    fitted = np.array([float(law.loss(n, d)[0]) for n, d in zip(n_k, d_k, strict=True)])
    drawn_rk, noise, noises = _resampled(np.log(loss_k) - np.log(fitted), 5, samples, rng)
    laws = fit_law(n_k, d_k, fitted * np.exp(drawn_rk))
    isoflop = fit_isoflop(n_k, budget_k, loss_k[None])
    smooth = np.empty_like(loss_k)
    for curve, budget in enumerate(isoflop.budget_c):
        at_budget = budget_k == budget
        smooth[at_budget] = np.exp(isoflop.log_loss(n_k[at_budget], curve)[:, 0])
    errors, parts = np.log(loss_k) - np.log(smooth), 3 * len(isoflop.budget_c)
    drawn_rk, _, _ = _resampled(errors, parts, samples, rng)
    isoflops = fit_isoflop(n_k, budget_k, smooth * np.exp(drawn_rk))
    return Study(law, laws, noise, noises, isoflop, isoflops)


def _resampled(
    error_k: np.ndarray, parameters: int, samples: int, rng: np.random.Generator
) -> tuple[np.ndarray, float, np.ndarray]:
    """Errors of samples (r, k), and the standard deviation of the noise: its estimate, and that of each
    sample."""
    k, free = len(error_k), len(error_k) - parameters
    error_k = np.clip(error_k - error_k.mean(), -3 * HUBER, 3 * HUBER)
    noise = math.sqrt(np.sum(error_k**2) / free)
    factor_r = np.sqrt(free / rng.chisquare(free, samples))
    unit_k = error_k / max(math.sqrt(np.mean(error_k**2)), 1e-300)
    return noise * factor_r[:, None] * unit_k[rng.integers(k, size=(samples, k))], noise, noise * factor_r


def interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The ends of the percentile interval of bootstrap values; samples without a value are left out, and NaN
    if all are."""
    if np.isnan(values).all():
        return math.nan, math.nan
    low, high = np.nanpercentile(values, [50 - 50 * level, 50 + 50 * level])
    return float(low), float(high)
