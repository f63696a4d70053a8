"""Scaled dot-product attention: the base class of all kinds, and multi-head attention."""

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.attention import rolling
from transformer.layers.attention.cache import KVCache
from transformer.layers.attention.kernels import choose, reference
from transformer.layers.attention.kernels.position_scoring import PositionScoring
from transformer.layers.attention.kernels.scores import Scoring, masked_softmax
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Pattern
from transformer.layers.attention.positions import Position
from transformer.layers.linear import Linear
from transformer.layers.mixers.base import Mixer
from transformer.layers.normalization import RMSNorm


class Attention(Mixer, kw_only=True):  # type: ignore[call-arg]
    """softmax(scale Q K^T + bias, masked) V: the base class of all kinds of attention.

    Subclasses implement `queries` and `keys_values`, and may override `join` (the output projection),
    `attend` or, in place of the softmax, `weights`.

    `position`: the encoding whose attention hooks are called; `kernel`: a key of `KERNELS`, or "auto";
    `pattern`: sparse attention; `soft_cap` and `sinks`: see `Scoring`; `dropout`: the rate for attention
    weights; `output_scale` multiplies the variance of the output kernel's initialisation, `score_scale` the
    products of queries and keys, whose factor is `attention_scale` (0: `scale`).
    """

    position: Position
    kernel: str = "auto"
    pattern: Pattern | None = None
    soft_cap: float = 0.0
    sinks: bool = False
    dropout: float = 0.0
    use_bias: bool = True
    output_scale: float = 1.0
    score_scale: float = 1.0
    attention_scale: float = 0.0

    heads_of_width: ClassVar[bool] = False
    """Whether queries, keys and values have the width `head_dim`, which some position encodings need."""

    @nn.compact
    def __call__(
        self,
        x_btd: jax.Array,
        *,
        mask: Mask,
        positions_bt: jax.Array,
        memory: KVCache | None = None,
        cache: KVCache | None = None,
        train: bool = False,
        **places: Any,
    ) -> tuple[jax.Array, KVCache | None]:
        """See `Mixer`. With `memory`, the keys and values of another sequence, queries attend to it instead
        (cross-attention; Vaswani et al. 2017, section 3.2.3)."""
        if cache is not None:
            return self.extend(x_btd, cache, mask=mask, positions_bt=positions_bt, train=train, **places)
        keys_values = self.keys_values(x_btd, positions_bt) if memory is None else memory.read(self.dtype)
        queries = self.queries(x_btd, positions_bt)
        out_bthk = self.attend(queries, *keys_values, mask, positions_bt, positions_bt, train)
        return self.join(out_bthk, x_btd.shape[-1]), None

    def extend(
        self,
        x_btd: jax.Array,
        cache: KVCache,
        *,
        mask: Mask,
        positions_bt: jax.Array,
        start: jax.Array | int = 0,
        key_positions_bs: jax.Array,
        train: bool = False,
    ) -> tuple[jax.Array, KVCache]:
        """The step form: the outputs of new tokens, which attend to the cache with their own keys and values;
        and this cache."""
        cache = cache.write(KVCache.of(*self.keys_values(x_btd, positions_bt)), start)
        if cache.wraps:
            indices_s = rolling.held_after(cache.slots, start, x_btd.shape[1], self.reach)
            mask, key_positions_bs = mask.pick(indices_s), key_positions_bs[:, indices_s]
        queries, keys_values = self.queries(x_btd, positions_bt), cache.read(self.dtype)
        out_bthk = self.attend(queries, *keys_values, mask, positions_bt, key_positions_bs, train)
        return self.join(out_bthk, x_btd.shape[-1]), cache

    def attend(
        self,
        q_bthk: jax.Array,
        k_bsgk: jax.Array,
        v_bsgk: jax.Array | None,
        mask: Mask,
        positions_bt: jax.Array,
        key_positions_bs: jax.Array,
        train: bool,
    ) -> jax.Array:
        """The outputs of the heads, (b, t, h, k), for `queries` and `keys_values` at these positions."""
        if self.pattern is not None:
            mask = self._with_pattern(mask, q_bthk.shape[2])
        options: Any = {"mask": mask, "scoring": self._scoring(q_bthk, positions_bt, key_positions_bs)}
        if train and self.dropout > 0:
            options |= {"dropout_rate": self.dropout, "dropout_rng": self.make_rng("dropout")}
        place = f"{self.parent.name}/{self.name}" if train else ""  # the kernels of training are logged
        return self.run_kernel(q_bthk, k_bsgk, v_bsgk, place=place, **options)

    def run_kernel(self, *inputs: Any, place: str, **options: Any) -> jax.Array:
        """`attend`, by the kernel for these inputs; measurements of attention intercept it."""
        sows = self.is_mutable_collection("intermediates") and not self.is_initializing()
        if sows or type(self).weights is not Attention.weights:
            return self._attend_and_sow(*inputs, **options)
        kernel = choose(self.kernel, *inputs, place=place, **options)
        with jax.named_scope(getattr(kernel, "__name__", self.kernel)):  # a partial function has no name
            return kernel(*inputs, **options)

    def _attend_and_sow(self, *inputs: jax.Array, **options: Any) -> jax.Array:
        # Only the reference kernel returns weights, or takes others than those of a softmax.
        out_bthk, weights_bhts = reference(*inputs, return_weights=True, weigh=self.weights, **options)
        self.sow("intermediates", "weights", weights_bhts)
        return out_bthk

    def weights(
        self, scores_bhts: jax.Array, allowed: jax.Array, sinks_h: jax.Array | None = None
    ) -> jax.Array:
        """The weights (b, h, t, s) of values: by default `masked_softmax`. A kind of attention with others
        overrides it, and is computed by the reference kernel; where `allowed`, broadcastable to the scores,
        is false, a weight must be 0."""
        return masked_softmax(scores_bhts, allowed, sinks_h)

    @abstractmethod
    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, h, k)."""

    @abstractmethod
    def keys_values(self, x_bsd: jax.Array, positions_bs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """(b, s, d) -> keys (b, s, g, k) and values (b, s, g, value width), as a cache keeps them; None: the
        values are read off the keys, by `attend`."""

    def shift(self, cache: KVCache, by: int) -> KVCache:
        """The cache of tokens that are `by` positions later."""
        key_bsgk = self.position.rotate(cache.key_bgsk.swapaxes(1, 2), jnp.full((1, 1), by))
        return dataclasses.replace(cache, key_bgsk=key_bsgk.swapaxes(1, 2))

    def join(self, out_bthk: jax.Array, width: int) -> jax.Array:
        """The heads' outputs (b, t, h, k) -> (b, t, width)."""
        names, scale = ("heads", "head_dim", "embed"), self.output_scale
        return self._linear((width,), names, axis=2, init_scale=scale, name="output")(out_bthk)

    def empty_cache(self, rows: int, slots: int) -> KVCache:
        """An empty cache of keys and values."""
        return KVCache.empty(rows, slots, self.cache_widths, self.dtype)

    @property
    def reach(self) -> int | None:
        """The reach of the pattern."""
        return None if self.pattern is None else self.pattern.reach

    @property
    def heads_that_draw(self) -> int:
        """The number of key/value heads, each with other blocks if a pattern draws them."""
        return self.cache_widths[0]

    def _with_pattern(self, mask: Mask, heads: int) -> Mask:
        mask = dataclasses.replace(mask, pattern=self.pattern)
        if self.pattern is None or not self.pattern.draws:
            return mask
        n = self.heads_that_draw
        seeds_d = jnp.arange(n) + n * (0 if mask.layer is None else mask.layer)
        return dataclasses.replace(mask, seeds_d=seeds_d, heads_per_seed=heads // n)

    @property
    @abstractmethod
    def cache_widths(self) -> tuple[int, int, int]:
        """The number of cached heads, and the widths of keys and values."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """The usual factor of the products of queries and keys, besides that of the position encoding."""

    def _scoring(self, q_bthk: jax.Array, positions_bt: jax.Array, key_positions_bs: jax.Array) -> Scoring:
        scale = (self.attention_scale or self.scale) * self.position.score_factor * self.score_scale
        scoring = Scoring(soft_cap=self.soft_cap, scale=scale)
        if self.sinks:
            scoring = dataclasses.replace(scoring, sinks_h=self._sinks(q_bthk.shape[2]))
        if any(self.position.has(hook) for hook in ("query_bias", "bias", "values")):
            return self._with_position(scoring, q_bthk, positions_bt, key_positions_bs)
        return scoring

    def _sinks(self, heads: int) -> jax.Array:
        init = nn.with_logical_partitioning(nn.initializers.zeros, ("heads",))
        return self.param("sinks", init, (heads,), jnp.float32)

    def _with_position(
        self, scoring: Scoring, q_bthk: jax.Array, positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> Scoring:
        if self.is_initializing():
            # Kernels call the hooks outside of this module, so create their parameters here.
            first_b1, weights_bhts = positions_bt[:1, :1], jnp.zeros((1, q_bthk.shape[2], 1, 1))
            self.position.query_bias(q_bthk[:1, :1])
            self.position.bias(q_bthk[:1, :1], first_b1, first_b1)
            self.position.values(weights_bhts, first_b1, first_b1)
        return PositionScoring(
            positions_bt,
            key_positions_bs,
            self.position.variables.get("params", {}),
            scoring.sinks_h,
            scoring.soft_cap,
            scoring.scale,
            position=self.position.clone(parent=None, name=None),
        )

    @property
    def _linear(self) -> functools.partial:
        return functools.partial(Linear, use_bias=self.use_bias, dtype=self.dtype)


class MultiHeadAttention(Attention, kw_only=True):  # type: ignore[call-arg]
    """softmax(Q K^T / sqrt(k) + bias, masked) V in each of h heads, and an output projection.

    MultiHead(x) = sum_h head_h W_h^O, head_h = Attention(x W_h^Q, x W_h^K, x W_h^V): the sum over heads is
    the same as a projection of their concatenation. With fewer `num_kv_heads`, groups of query heads share
    keys and values (Ainslie et al. 2023); 1 is multi-query attention (Shazeer 2019). `qk_norm` normalises
    queries and keys by a `head_norm` (Henry et al. 2020; Dehghani et al. 2023, section 2). `qkv_bias` gives
    their projections and that of the values biases even without `use_bias`.
    Source: Vaswani et al. 2017, section 3.2.
    """

    num_heads: int
    head_dim: int
    num_kv_heads: int
    qk_norm: bool = False
    head_norm: Callable[..., nn.Module] = RMSNorm
    qkv_bias: bool = False

    heads_of_width: ClassVar[bool] = True

    def setup(self) -> None:
        """The input projections; the width of the output projection depends on the input."""
        names = "embed", "heads", "head_dim"
        # Scores have the same initial scale with any factor (as in the code of Raffel et al. 2020).
        scale = (self.scale / self.attention_scale) ** 2 if self.attention_scale else 1.0
        linear = functools.partial(self._linear, use_bias=self.use_bias or self.qkv_bias)
        self.query = linear((self.num_heads, self.head_dim), names, init_scale=scale)
        shared = (self.num_kv_heads, self.head_dim), ("embed", "kv_heads", "head_dim")
        self.key, self.value = linear(*shared), linear(*shared)
        if self.qk_norm:
            self.query_norm, self.key_norm = self.head_norm(), self.head_norm()

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, h, k)."""
        q_bthk = self.query(x_btd)
        q_bthk = self.position.rotate(self.query_norm(q_bthk) if self.qk_norm else q_bthk, positions_bt)
        return nn.with_logical_constraint(q_bthk, ("batch", "length", "heads", "head_dim"))

    def keys_values(self, x_bsd: jax.Array, positions_bs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Keys and values of g heads."""
        axes = ("batch", "length", "kv_heads", "head_dim")
        k_bsgk, v_bsgk = self.key(x_bsd), self.value(x_bsd)
        k_bsgk = self.position.rotate(self.key_norm(k_bsgk) if self.qk_norm else k_bsgk, positions_bs)
        return nn.with_logical_constraint(k_bsgk, axes), nn.with_logical_constraint(v_bsgk, axes)

    @property
    def cache_widths(self) -> tuple[int, int, int]:
        """g heads of keys and values."""
        return self.num_kv_heads, self.head_dim, self.head_dim

    @property
    def products_per_pair(self) -> int:
        """2 h k."""
        return 2 * self.num_heads * self.head_dim

    @property
    def rotary_width(self) -> int:
        """The width of a head."""
        return self.head_dim

    @property
    def scale(self) -> float:
        """1 / sqrt(k)."""
        return self.head_dim**-0.5
