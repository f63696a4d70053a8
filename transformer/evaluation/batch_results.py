"""The results of a compiled step for each batch of a pass over held-out data."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from transformer.errors import UserError
from transformer.training.experiment import Batch, Batches, Params, Put
from transformer.training.metrics import Sum, merge


def batch_results(
    step: Callable[[Params, Batch], Any], params: Params, loader: Batches, put: Put, batches: int
) -> Iterator[Any]:
    """The results of `step` for every batch of a pass (only the first `batches` unless 0), on the host.

    Raises:
      UserError: the loader has no batch.
    """
    waiting = None
    for batch in itertools.islice(loader.iterate(0), batches or None):
        results = step(params, put(batch))
        if waiting is not None:
            yield _read(waiting)  # one batch late, so that the device never waits for the host
        waiting = results
    if waiting is None:
        raise UserError("evaluation: the data has 0 batches; expected at least 1")
    yield _read(waiting)


def summed_terms(
    step: Callable[[Params, Batch], dict[str, Sum]], params: Params, loader: Batches, put: Put, batches: int
) -> dict[str, Sum]:
    """The sum of the terms over all batches of `batch_results`."""
    return merge(batch_results(step, params, loader, put, batches))


def _read(terms: Any) -> Any:
    """Host arrays in float64: sums of counts stay exact beyond 2^24."""
    return jax.tree.map(lambda value: np.asarray(value, np.float64), jax.device_get(terms))
