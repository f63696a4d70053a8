"""The interface of a mixer: what mixes the tokens of a sequence in a block."""

from abc import abstractmethod
from typing import Any

import jax
from flax import linen as nn

from transformer.layers.masks import Mask


class Mixer(nn.Module):
    """Attention of any kind, or a recurrence: (b, t, d) -> (b, t, d), each token from those it may see.

    Sequence form, `cache=None`: the whole sequence at once. Step form: t new tokens that follow those which
    `cache` holds (first `empty_cache`), and the cache with them. Both forms compute the same function. A
    cache is a `KVCache`, or a state: any pytree of arrays whose leading axis is the batch.

    A document begins where `positions_bt` is 0, and a recurrence begins anew there; `mask` says the same for
    attention. Padding before a prompt has position 0 throughout.

    A mixer is built from the keys of `StackConfig` that are its fields. Its module is called `attention` in
    the parameters, whatever its kind.
    """

    dtype: str = "float32"

    @abstractmethod
    def __call__(
        self,
        x_btd: jax.Array,
        *,
        mask: Mask,
        positions_bt: jax.Array,
        cache: Any = None,
        start: jax.Array | int = 0,
        key_positions_bs: jax.Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, Any]:
        """(b, t, d) -> (b, t, d), and the cache with the new tokens (None in the sequence form).

        In the step form the tokens fill the cache's slots from `start` on; the key axis of `mask` is that of
        its slots, which stand at `key_positions_bs`.
        """

    @abstractmethod
    def empty_cache(self, rows: int, slots: int) -> Any:
        """The cache of a batch that has read nothing, with room for `slots` tokens."""

    @property
    def reach(self) -> int | None:
        """How many keys back a query attends, its own the first; None: all. So many a KV cache keeps."""
        return None

    @property
    def rotary_width(self) -> int:
        """The number of dimensions that rotary positions turn, which must be even."""
        return 0
