"""Gradients of float32 functions against differences of a float64 one."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

TOLERANCE = 5e-4


def assert_slopes(rng: np.random.Generator, f: Callable[[Any], float], params: Any, gradient: Any) -> None:
    """The `gradient` of f at `params` (float64) along a random direction of each leaf, relative to the norm
    of the leaf's gradient (and at least a thousandth of the largest one's). Rounding is below a tenth."""
    leaves, structure = jax.tree.flatten(params)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    found = [np.asarray(leaf, np.float64) for leaf in structure.flatten_up_to(gradient)]
    floor = 1e-3 * max(np.linalg.norm(leaf) for leaf in found)
    for n, (path, leaf, slope) in enumerate(zip(paths, leaves, found, strict=True)):
        direction, step = rng.normal(size=leaf.shape), 1e-5

        def at(x: np.ndarray, n: int = n) -> float:
            return f(jax.tree.unflatten(structure, [*leaves[:n], x, *leaves[n + 1 :]]))

        expected = (at(leaf + step * direction) - at(leaf - step * direction)) / (2 * step)
        off = abs(np.sum(slope * direction) - expected)
        assert off <= TOLERANCE * max(np.linalg.norm(slope), floor), (
            path,
            np.sum(slope * direction),
            expected,
        )
