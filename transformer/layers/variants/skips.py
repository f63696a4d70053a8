"""U-shaped skips: layers of the upper half of a stack also read the outputs of its lower half."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.attention.cache import KVCache
from transformer.layers.attention.masks import Mask
from transformer.layers.stack import Runners, Stack

SKIP = "skip"
"""The name of the learned weights of the skips in the parameters of layers."""


@dataclasses.dataclass(frozen=True)
class UShaped(Stack):
    """A stack whose layer n - 1 - i reads x + w y_i, with y_i the output of layer i < n / 2.

    w, one number for each layer, is initially 1; those of the lower half are not used.
    Source: Jordan et al. 2024, modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt), record of
    2024-11-10; after Bao et al. 2023 (U-ViT), section 3.1, who concatenate.

    Raises:
      UserError: the layers are to be scanned, which keeps no outputs of earlier layers.
    """

    def __post_init__(self) -> None:
        if self.scan:
            raise UserError("config.model.scan_layers: true with skips, which need false")

    def init(self, rng: jax.Array, x_btd: jax.Array) -> Any:
        """See `Stack.init`; with the weights of the skips."""
        params = super().init(rng, x_btd)

        def with_skips(tree: Any, n: int) -> Any:
            return {**tree, SKIP: nn.LogicallyPartitioned(jnp.ones(n, jnp.float32), ("layers",))}

        if set(params) != set(self.kinds):
            return with_skips(params, self.num_layers)
        return {kind: with_skips(tree, self.counts[kind]) for kind, tree in params.items()}

    def _in_turn(
        self, runners: Runners, x_btd: jax.Array, params: Any, given_n: Any, caches: Sequence[Any]
    ) -> tuple[jax.Array, list[Any]]:
        found: list[Any] = []
        outputs: list[jax.Array] = []
        for i, (layer, cache) in enumerate(zip(self.unstack(params), caches, strict=True)):
            given = jax.tree.map(operator.itemgetter(i), given_n)
            x_btd = self._joined(x_btd, outputs, layer)
            with jax.named_scope(f"block_{i}"):  # for profiler traces
                x_btd, of_layer = runners[i % len(runners)](x_btd, layer, given, cache)
            outputs.append(x_btd)
            found.append(of_layer)
        return x_btd, found

    def extend(
        self,
        layers: list[Any],
        x_btd: jax.Array,
        caches: Sequence[Any],
        memories: Sequence[KVCache | None] = (),
        rngs_n: jax.Array | None = None,
        *,
        mask: Mask,
        **inputs: Any,
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """See `Stack.extend`."""
        extended: list[Any] = []
        outputs: list[jax.Array] = []
        memories = memories or (None,) * self.num_layers
        for i, (params, cache, memory) in enumerate(zip(layers, caches, memories, strict=True)):
            x_btd = self._joined(x_btd, outputs, params)
            rngs = {} if rngs_n is None else {"dropout": rngs_n[i]}
            inputs["mask"] = dataclasses.replace(mask, layer=i if self.draws else None)
            given = x_btd, cache, memory
            x_btd, cache = self.block(i).apply({"params": params}, *given, rngs=rngs, **inputs)
            outputs.append(x_btd)
            extended.append(cache)
        return x_btd, tuple(extended)

    def _joined(self, x_btd: jax.Array, outputs: list[jax.Array], params: Any) -> jax.Array:
        """The input of the next layer, after those of `outputs`."""
        mirrored = self.num_layers - 1 - len(outputs)
        if mirrored >= self.num_layers // 2:
            return x_btd
        return x_btd + params[SKIP].astype(x_btd.dtype) * outputs[mirrored]
