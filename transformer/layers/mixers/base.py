"""The base class of mixers, which mix the tokens of a sequence in a block."""

from abc import abstractmethod
from typing import Any, ClassVar

import jax
from flax import linen as nn

from transformer.layers.attention.masks import Mask

SHARED = "shared"
"""The collection that layers hand on: what a module of a layer puts there, that of the next layer can get."""


class Mixer(nn.Module):
    """Attention of any kind, or a recurrence: (b, t, d) -> (b, t, d).

    Sequence form, `cache=None`: the whole sequence at once. Step form: t new tokens after those in `cache`
    (initially `empty_cache`); it also returns the new cache. Both forms compute the same function. A cache is
    a `KVCache`, or a state: any pytree of arrays with a leading batch axis.

    A document starts where `positions_bt` is 0; a recurrence resets its state there, and attention uses
    `mask`. Padding before a prompt has position 0.

    A mixer is built from the keys of `StackConfig` that are its fields. Its parameters are named `attention`,
    also for recurrences.
    """

    dtype: str = "float32"

    heads_of_width: ClassVar[bool] = True
    """Whether its heads, if it has some, are as wide as the keys of the model say."""

    @property
    def pattern(self) -> Any:
        """The `Pattern` of the keys that a query has; None: all before it, or all."""
        return None

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

        In the step form the tokens are written to the slots from `start` on; the key axis of `mask` are the
        slots, with positions `key_positions_bs`.
        """

    @abstractmethod
    def empty_cache(self, rows: int, slots: int) -> Any:
        """An empty cache for a batch, with room for `slots` tokens."""

    @property
    def reach(self) -> int | None:
        """The number of last keys that a query may attend to (None: all), which a KV cache must keep."""
        return None

    @property
    def products_per_pair(self) -> int:
        """The multiplications for each pair of a query and a key: scores and weighted sums of values."""
        return 0

    @property
    def rotary_width(self) -> int:
        """The number of dimensions that rotary positions rotate, which must be even."""
        return 0
