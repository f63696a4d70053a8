"""The log of the kernels that attention chose."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

LOGGER = logging.getLogger("transformer.attention")

WRITERS: list[Callable[[str], None]] = []
"""The functions that get the lines, within `logging_kernels`."""

FUSED = {"nvidia": ("cudnn",), "tpu": ("splash",)}
"""Platform -> fused kernels that "auto" tries first."""

OF_DEVICES = ("ring", *(name for fused in FUSED.values() for name in fused))
"""Kernels that "auto" prefers to the others where there are devices for them."""


def log_kernel(name: str, place: str, refusals: Mapping[str, str]) -> None:
    """Logs the kernel of the attention module `place`, "attention: splash in blocks/attention".

    A kernel in place of one for these devices has the reason in brackets, "blockwise in blocks/attention
    (splash: it has no dropout of weights)": `refusals` are the reasons, by the name of the kernel.
    """
    why = "; ".join(f"{kernel}: {refusal}" for kernel, refusal in refusals.items() if kernel in OF_DEVICES)
    line = f"attention: {name} in {place}" + (f" ({why})" if why else "")
    for write in WRITERS or [LOGGER.info]:
        write(line)


@contextlib.contextmanager
def logging_kernels(write: Callable[[str], None]) -> Iterator[None]:
    """A context in which `write` gets each line of `log_kernel` instead of the logger, once for each trace of
    the module."""
    WRITERS.append(write)
    try:
        yield
    finally:
        WRITERS.remove(write)
