"""Metrics are `Sum`s by name (see `transformer/sums.py`)."""

from collections.abc import Iterable, Mapping

from transformer.sums import Sum

__all__ = ["Sum", "merge"]


def merge(parts: Iterable[Mapping[str, Sum]]) -> dict[str, Sum]:
    """Adds dictionaries of `Sum`s by name; names may be missing in some of them."""
    merged: dict[str, Sum] = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = merged[name] + value if name in merged else value
    return merged
