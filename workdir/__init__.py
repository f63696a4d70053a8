"""The folder of a run, and the public Python API: `from workdir import load, train`.

The API is that of `workdir.api`, which is imported at the first use of one of its names: the commands import
other modules of this package before JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workdir.api import *  # noqa: F403

API = (
    *("Picture", "attention_beside", "attention_maps", "complete", "curves", "embed", "evaluate", "load"),
    *("logits", "metrics", "samples", "settle", "train", "word_map"),
)
"""The names of the API."""


def __getattr__(name: str) -> Any:
    """A member of the API. Raises `AttributeError` for another name."""
    if name not in API:
        raise AttributeError(f"module 'workdir' has no attribute {name!r}")
    return getattr(importlib.import_module("workdir.api"), name)
