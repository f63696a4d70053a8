"""Rules of the parts that most families have. Kernels are stored with their outputs first, as PyTorch's
`nn.Linear` has them."""

from collections.abc import Iterator
from typing import Any

from transformer.interop.tensor_rules import Rule

Paths = str | tuple[str, ...]
"""A module of ours, or several whose parameters are one tensor of theirs."""


def affine(ours: Paths, theirs: str, kernel: str, bias: str | None = "", **options: Any) -> Iterator[Rule]:
    """x W + b with the axes `kernel` and `bias`, theirs -> ours; None: there is no bias."""
    yield Rule(_each(ours, "kernel"), f"{theirs}.weight", kernel, **options)
    if bias is not None:
        yield Rule(_each(ours, "bias"), f"{theirs}.bias", bias, **options)


def linear(ours: str, theirs: str, bias: bool = True, **options: Any) -> Iterator[Rule]:
    """A linear map of one axis."""
    return affine(ours, theirs, "f d -> d f", "" if bias else None, **options)


def heads(ours: Paths, theirs: str, bias: bool = True, **options: Any) -> Iterator[Rule]:
    """A projection to queries, keys or values."""
    return affine(ours, theirs, "(h k) d -> d h k", "(h k) -> h k" if bias else None, **options)


def joined(ours: str, theirs: str, bias: bool = True, **options: Any) -> Iterator[Rule]:
    """The projection of all heads' outputs."""
    return affine(ours, theirs, "d (h k) -> h k d", "" if bias else None, **options)


def norm(ours: str, theirs: str, bias: bool = True, scale: str = "scale", **options: Any) -> Iterator[Rule]:
    """A LayerNorm, or without a bias an RMSNorm, whose parameter is named `scale`."""
    yield Rule(f"{ours}/{scale}", f"{theirs}.weight", **options)
    if bias:
        yield Rule(f"{ours}/bias", f"{theirs}.bias", **options)


def tied_output(model: Any) -> dict[str, str]:
    """The output of a language model, where it is the table of embeddings."""
    return {"lm_head.weight": "embedding/table"} if model.tie_embeddings else {}


def _each(ours: Paths, leaf: str) -> Paths:
    return f"{ours}/{leaf}" if isinstance(ours, str) else tuple(f"{path}/{leaf}" for path in ours)
