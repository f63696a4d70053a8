"""Rematerialisation: what the forward pass of a block saves; the backward pass recomputes the rest."""

from collections.abc import Callable

import jax
from jax.ad_checkpoint import checkpoint_policies as policies

from transformer.devices import platform
from transformer.errors import UserError
from transformer.layers.attention.kernels.scores import SAVED

HOST = "pinned_host"
"""The memory that `offload` moves activations to."""

OFFLOADING = ("cpu", "gpu", "nvidia", "tpu")
"""Platforms with this memory, by `devices.platform`."""

REMAT: dict[str, Callable | None] = {
    "none": None,
    "full": policies.nothing_saveable,
    "dots": policies.checkpoint_dots,
    "dots_no_batch": policies.dots_with_no_batch_dims_saveable,
    "attention": policies.save_only_these_names(SAVED),
    "offload": policies.offload_dot_with_no_batch_dims("device", HOST),
}
"""Values that the forward pass saves for the backward pass: everything; only the inputs of blocks; all matrix
products; only products with weights, which have no batch axis; the outputs of attention kernels; or the
products with weights, in host memory (Chen et al. 2016, "Training deep nets with sublinear memory cost")."""


def rematerialised(run: Callable, remat: str, *, prevent_cse: bool) -> Callable:
    """The function `run`, whose backward pass saves what `REMAT[remat]` says and recomputes the rest.

    Raises:
      UserError: this platform has no memory to offload to.
    """
    if remat == "offload" and platform() not in OFFLOADING:
        expected = ", ".join(repr(name) for name in REMAT if name != "offload")
        raise UserError(f"remat: 'offload', but {platform()} has no {HOST}; expected one of {expected}")
    return jax.checkpoint(run, policy=REMAT[remat], prevent_cse=prevent_cse)
