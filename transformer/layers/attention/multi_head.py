"""Multi-head attention: projections, heads, and one call to a kernel."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.cache import LayerCache
from transformer.layers.kernels import choose, reference
from transformer.layers.linear import Linear
from transformer.layers.masks import Mask
from transformer.layers.normalization import RMSNorm
from transformer.layers.patterns import Pattern
from transformer.layers.positions import Position
from transformer.layers.scoring import Scoring


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(k) + bias, masked) V in each of h heads, joined by an output projection.

    MultiHead(x) = sum_h head_h W_h^O, head_h = Attention(x W_h^Q, x W_h^K, x W_h^V): writing the sum over
    heads is the same as concatenating them. `head_dim` is free: d_model / num_heads is the usual
    ("narrow") choice, up to d_model a head the "wide" one. With fewer `num_kv_heads` groups of query heads
    share keys and values (Ainslie et al. 2023); 1 is multi-query (Shazeer 2019).
    Source: Vaswani et al. 2017, section 3.2.

    Fields beyond these: `position`, whose hooks of attention act here; `kernel`, a key of `KERNELS`
    or "auto"; `pattern`, the keys that may be seen at all; `soft_cap` and `sinks` as in `Scoring`; `qk_norm`,
    which divides each query and key by its root mean square (Henry et al. 2020; Dehghani et al. 2023,
    section 2); `dropout` on the attention weights; `output_scale`, which multiplies the variance of the
    output kernel's initialisation; `lora_rank` and `lora_alpha` of queries and values (see `Linear`).

    Another kind of attention is a subclass that has its own `queries`, `remember`, `seen` and `join`.
    """

    num_heads: int
    head_dim: int
    num_kv_heads: int
    position: Position
    kernel: str = "auto"
    pattern: Pattern | None = None
    soft_cap: float = 0.0
    sinks: bool = False
    qk_norm: bool = False
    dropout: float = 0.0
    use_bias: bool = True
    dtype: str = "float32"
    output_scale: float = 1.0
    lora_rank: int = 0
    lora_alpha: float = 16.0

    @nn.compact
    def __call__(
        self,
        x_btd: jax.Array,
        *,
        mask: Mask,
        positions_bt: jax.Array,
        memory: LayerCache | None = None,
        cache: LayerCache | None = None,
        start: jax.Array | int = 0,
        key_positions_bs: jax.Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, LayerCache | None]:
        """(b, t, d) -> (b, t, d), and the cache with the new keys and values in its slots from `start` on.

        With a cache the queries also see what it holds: the mask's key axis is then that of its slots, at
        `key_positions_bs`, all of them even where the cache wraps. With `memory`, which `remember` makes of
        another sequence, they see that instead of themselves (cross-attention, section 3.2.3).
        """
        q_bthk = self.queries(x_btd, positions_bt)
        q_bthk = nn.with_logical_constraint(q_bthk, ("batch", "length", "heads", "head_dim"))
        seen = self.remember(x_btd, positions_bt) if memory is None else memory
        if cache is not None:
            seen = cache = cache.write(seen, start)
        key_bsgk, value_bsgk = self.seen(seen)
        key_positions_bs = positions_bt if key_positions_bs is None else key_positions_bs
        mask = dataclasses.replace(mask, pattern=self.pattern)
        if cache is not None and cache.wraps:
            self._check_ring(cache, x_btd.shape[1])
            indices_s = cache.indices(start + x_btd.shape[1])
            mask, key_positions_bs = mask.pick(indices_s), key_positions_bs[:, indices_s]
        inputs: dict[str, Any] = {
            "mask": mask,
            "scoring": self._scoring(q_bthk, positions_bt, key_positions_bs),
        }
        if train and self.dropout > 0:
            inputs |= {"dropout_rate": self.dropout, "dropout_rng": self.make_rng("dropout")}
        if self.is_mutable_collection("intermediates") and not self.is_initializing():
            out_bthk, weights_bhts = reference(q_bthk, key_bsgk, value_bsgk, return_weights=True, **inputs)
            self.sow("intermediates", "weights", weights_bhts)
        else:
            given = {name: inputs[name] for name in inputs if name != "dropout_rng"}
            kernel = choose(self.kernel, q_bthk, key_bsgk, value_bsgk, **given)
            with jax.named_scope(kernel.__name__):
                out_bthk = kernel(q_bthk, key_bsgk, value_bsgk, **inputs)
        return self.join(out_bthk, x_btd.shape[-1]), cache

    def setup(self) -> None:
        """The projections of the inputs; the output's follows from the input's width."""
        lora = {"lora_rank": self.lora_rank, "lora_alpha": self.lora_alpha}
        self.query = self._linear((self.num_heads, self.head_dim), ("embed", "heads", "head_dim"), **lora)
        shared = (self.num_kv_heads, self.head_dim), ("embed", "kv_heads", "head_dim")
        self.key, self.value = self._linear(*shared), self._linear(*shared, **lora)
        if self.qk_norm:
            self.query_norm, self.key_norm = RMSNorm(), RMSNorm()

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, h, k)."""
        q_bthk = self.query(x_btd)
        return self.position.rotate(self.query_norm(q_bthk) if self.qk_norm else q_bthk, positions_bt)

    def remember(self, x_bsd: jax.Array, positions_bs: jax.Array) -> LayerCache:
        """The keys and values of a sequence: what queries are to see of it, now or later."""
        key_bsgk, value_bsgk = self.key(x_bsd), self.value(x_bsd)
        key_bsgk = self.position.rotate(self.key_norm(key_bsgk) if self.qk_norm else key_bsgk, positions_bs)
        key_bsgk = nn.with_logical_constraint(key_bsgk, ("batch", "length", "kv_heads", "head_dim"))
        value_bsgk = nn.with_logical_constraint(value_bsgk, ("batch", "length", "kv_heads", "head_dim"))
        return LayerCache(key_bsgk.swapaxes(1, 2), value_bsgk.swapaxes(1, 2))

    def seen(self, memory: LayerCache) -> tuple[jax.Array, jax.Array]:
        """The keys and values (b, s, g, k) of what was remembered."""
        return memory.key_bgsk.swapaxes(1, 2), memory.value_bgsk.swapaxes(1, 2)

    def join(self, out_bthk: jax.Array, width: int) -> jax.Array:
        """The heads' outputs (b, t, h, k) -> (b, t, width)."""
        names, scale = ("heads", "head_dim", "embed"), self.output_scale
        return self._linear((width,), names, axis=2, init_scale=scale, name="output")(out_bthk)

    @property
    def reach(self) -> int | None:
        """How many keys back queries see, their own the first; None: all."""
        return None if self.pattern is None else self.pattern.reach

    @property
    def remembered(self) -> tuple[int, int, int]:
        """What `remember` keeps of each token: heads, the width of a key, the width of a value."""
        return self.num_kv_heads, self.head_dim, self.head_dim

    @property
    def scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return self.head_dim**-0.5

    def _check_ring(self, cache: LayerCache, t: int) -> None:
        most = cache.slots - (self.reach or cache.slots) + 1
        if t > most:
            raise UserError(f"{t} tokens at once; a ring of {cache.slots} slots takes {most} of this pattern")

    def _scoring(self, q_bthk: jax.Array, positions_bt: jax.Array, key_positions_bs: jax.Array) -> Scoring:
        sinks_h = None
        if self.sinks:
            init = nn.with_logical_partitioning(nn.initializers.zeros, ("heads",))
            sinks_h = self.param("sinks", init, (self.num_heads,), jnp.float32)
        position = self.position.clone(parent=None, name=None)
        scoring = Scoring(sinks_h=sinks_h, position=position, soft_cap=self.soft_cap, scale=self.scale)
        if not any(scoring.has(hook) for hook in ("query_bias", "bias", "values")):
            return dataclasses.replace(scoring, position=None)
        if self.is_initializing():
            # Kernels ask the hooks, outside of this module, so their parameters must be there before.
            place, weights_bhts = positions_bt[:1, :1], jnp.zeros((1, self.num_heads, 1, 1))
            self.position.query_bias(q_bthk[:1, :1])
            self.position.bias(q_bthk[:1, :1], place, place)
            self.position.values(weights_bhts, place, place)
        return dataclasses.replace(
            scoring,
            query_positions_bt=positions_bt,
            key_positions_bs=key_positions_bs,
            params=self.position.variables.get("params", {}),
        )

    @property
    def _linear(self) -> functools.partial:
        return functools.partial(Linear, use_bias=self.use_bias, dtype=self.dtype)
