"""Likelihood of held-out data, from the same loss that training reports."""

import itertools
from collections.abc import Callable

import jax
import numpy as np

from transformer.errors import UserError
from transformer.training.experiment import Batch, Loader, Params, Put
from transformer.training.metrics import Sum, merge


class LikelihoodEvaluator:
    """The mean of every term over one pass of `loader`, and perplexity = exp(nats per target), which is the
    term `nll`, or where there is none, `loss`.

    `step` is the compiled (params, batch) -> {name: Sum}, `put` brings a batch onto the devices, and
    `batches` limits the pass (0: all). Totals and weights of all batches are added before any is divided,
    so that the result is the whole set's however ragged the batches are.
    """

    def __init__(
        self,
        step: Callable[[Params, Batch], dict[str, Sum]],
        loader: Loader,
        put: Put = lambda batch: batch,
        batches: int = 0,
    ) -> None:
        self._step, self._loader, self._put, self._batches = step, loader, put, batches

    def __call__(self, params: Params) -> dict[str, float]:
        """{"loss": nats, "perplexity": ..., ...}: one name for each term of the loss.

        Raises:
          UserError: the loader has no batch.
        """
        merged = total(self._step, params, self._loader, self._put, self._batches)
        results = {name: float(term.mean) for name, term in merged.items()}
        nats = results["nll" if "nll" in results else "loss"] if "loss" in results else None
        if nats is not None:
            with np.errstate(over="ignore"):  # a loss that diverged has infinite perplexity
                results["perplexity"] = float(np.exp(nats))
        return results


def total(
    step: Callable[[Params, Batch], dict[str, Sum]], params: Params, loader: Loader, put: Put, batches: int
) -> dict[str, Sum]:
    """What `step` finds of every batch of one pass (of the first `batches`, where that is not 0), added up.

    Raises:
      UserError: the loader has no batch.
    """
    merged: dict[str, Sum] = {}
    waiting: dict[str, Sum] = {}
    for batch in itertools.islice(loader.iterate(0), batches or None):
        terms = step(params, put(batch))
        # Read one batch late, so that the devices work on this one meanwhile.
        merged, waiting = merge((merged, _read(waiting))), terms
    merged = merge((merged, _read(waiting)))
    if not merged:
        raise UserError("evaluation: the data has 0 batches; expected at least 1")
    return merged


def _read(terms: dict[str, Sum]) -> dict[str, Sum]:
    """In float64: counts stay exact where float32 would stop at 2^24."""
    return jax.tree.map(lambda value: np.asarray(value, np.float64), jax.device_get(terms))
