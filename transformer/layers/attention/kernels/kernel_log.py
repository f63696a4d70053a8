"""The log of the kernels that attention chose."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

LOGGER = logging.getLogger("transformer.attention")

FUSED = {"nvidia": ("cudnn",), "tpu": ("splash",)}
"""Platform -> fused kernels that "auto" tries first."""

OF_DEVICES = ("ring", *(name for fused in FUSED.values() for name in fused))
"""Kernels that "auto" prefers to the others where there are devices for them."""


def log_kernel(name: str, place: str, refusals: Mapping[str, str]) -> None:
    """Logs the kernel of the attention module `place`, "attention: splash in blocks/attention".

    A kernel in place of one for these devices has the reason in brackets, "blockwise in blocks/attention
    (splash: it has no dropout of weights)": `refusals` are the reasons, by the name of the kernel.
    """
    why = "; ".join(f"{other}: {refusal}" for other, refusal in refusals.items() if other in OF_DEVICES)
    LOGGER.info("attention: %s in %s%s", name, place, f" ({why})" if why else "")


@contextlib.contextmanager
def logging_kernels(write: Callable[[str], None]) -> Iterator[None]:
    """A context in which `write` gets each line that `log_kernel` logs, once for each trace of the module."""
    handler, level = logging.Handler(), LOGGER.level
    handler.emit = lambda record: write(record.getMessage())  # type: ignore[method-assign]
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False  # a handler of a library on the root logger would print each line again
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = True
