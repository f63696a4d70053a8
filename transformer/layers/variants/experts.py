"""A mixture of experts: feed-forward networks of which each token goes through a few."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.devices import sharded_over
from transformer.errors import UserError
from transformer.layers.linear import Linear, contract
from transformer.layers.quantized import is_quantized
from transformer.layers.variants.grouped import grouped
from transformer.sums import Sum


class Experts(nn.Module):
    """y = sum_i w_i network_i(x) over the k = `experts_per_token` experts i with the largest p_i.

    p = softmax(router(x)) over e = `num_experts`, in float32. w = p / sum of the k largest p (Shazeer et al.
    2017; Lepikhin et al. 2021, "GShard"); w = p if k = 1, where the quotient would have no gradient (Fedus et
    al. 2022, "Switch Transformers", section 2.1). `network` is a member of `FEED_FORWARDS` with its sizes;
    with `router_bias` the router has a bias of each expert.

    With a `capacity_factor`, in training an expert serves at most floor(k t / e * capacity_factor) tokens of
    a document of t: the first ones, so none depends on what a later one is. To others it adds nothing
    (GShard, section 3.2, with a document as the group). As they are rounded down, the capacities of the
    documents of a row fit into the buffers of one row. In evaluation and decoding, and with 0, an expert
    serves every token.

    Sown terms, means over rows of what is computed for a row's tokens that are not padding:

    load_balance: e sum_i f_i P_i, with f_i expert i's share of the choices and P_i the mean of p_i; 1 if
                  balanced (Fedus et al. 2022, section 2.2)
    router_z:     the mean of logsumexp(router(x))^2 (Zoph et al. 2022, "ST-MoE", section 3)
    """

    network: Callable[..., nn.Module]
    num_experts: int
    experts_per_token: int = 2
    capacity_factor: float = 0.0
    router_bias: bool = False

    @nn.compact
    def __call__(
        self, x_btd: jax.Array, *, segments_bt: jax.Array | None = None, train: bool = False
    ) -> jax.Array:
        """(b, t, d) -> (b, t, d). Tokens of one segment are a document, None: those of a row; segment 0 is
        padding, which takes no expert's capacity.

        Raises:
          UserError: the capacity of an expert for a row is 0.
        """
        e, k, t = self.num_experts, self.experts_per_token, x_btd.shape[1]
        segments_bt = jnp.ones(x_btd.shape[:2], jnp.int32) if segments_bt is None else segments_bt
        logits_bte = Linear((e,), names=("embed", None), use_bias=self.router_bias, name="router")(x_btd)
        probabilities_bte = jax.nn.softmax(logits_bte)
        # `jax.lax.top_k` would gather the tokens of all devices.
        experts_btk = jnp.argsort(-probabilities_bte, axis=-1, stable=True)[..., :k]
        weights_btk = jnp.take_along_axis(probabilities_bte, experts_btk, axis=-1)
        if k > 1:
            weights_btk /= jnp.sum(weights_btk, axis=-1, keepdims=True)
        if self.is_mutable_collection("terms"):
            self._sow_terms(logits_bte, probabilities_bte, experts_btk, segments_bt > 0)
        if train and self.capacity_factor:
            capacities = self.capacities(t)
            kept_btk = within(capacities, experts_btk, segments_bt)
            routes: Routes = Buffers.of(experts_btk, kept_btk, e, capacities[t])
        elif self.is_initializing():  # of layers under `jax.vmap`
            routes = Buffers.of(experts_btk, jnp.ones(experts_btk.shape, bool), e, t)
        else:
            routes = Sorted.of(experts_btk, e)
        linear = functools.partial(ExpertLinear, num_experts=e, routes=routes)
        network = self.network(linear=linear, hidden=routes.hidden, name="experts")
        y_btkd = routes.collect(network(routes.deal(x_btd)))
        return jnp.einsum("btk,btkd->btd", weights_btk, y_btkd.astype(jnp.float32)).astype(y_btkd.dtype)

    def capacities(self, longest: int) -> list[int]:
        """The most tokens of a document that an expert serves, for documents of 0 to `longest` tokens.

        Those of the parts of a row never exceed that of the row; so none may have a rounding error.
        """
        share = Fraction(str(self.capacity_factor)) * self.experts_per_token / self.num_experts
        up, down = share.as_integer_ratio()
        if longest * up < down:
            raise UserError(
                f"model.capacity_factor: {self.capacity_factor}; of {longest} tokens of a row an expert "
                f"would serve none; expected {self.num_experts}/{self.experts_per_token * longest} or more, "
                "or 0"
            )
        return [min(t, t * up // down) for t in range(longest + 1)]

    def _sow_terms(
        self,
        logits_bte: jax.Array,
        probabilities_bte: jax.Array,
        experts_btk: jax.Array,
        valid_bt: jax.Array,
    ) -> None:
        # Each row has the weight 1, also one of padding alone: so the mean of microbatches is that of the
        # batch, and never 0 / 0.
        valid_bt1 = valid_bt[..., None].astype(jnp.float32)
        count_b1 = jnp.maximum(jnp.sum(valid_bt1, axis=1), 1.0)
        chosen_bte = jnp.sum(jax.nn.one_hot(experts_btk, self.num_experts), axis=2)
        fraction_be = jnp.sum(chosen_bte * valid_bt1, axis=1) / (count_b1 * self.experts_per_token)
        probability_be = jnp.sum(probabilities_bte * valid_bt1, axis=1) / count_b1
        balance_b = self.num_experts * jnp.sum(fraction_be * probability_be, axis=-1)
        z_bt = jnp.square(jax.nn.logsumexp(logits_bte, axis=-1))
        self.sow("terms", "load_balance", Sum.of(balance_b))
        self.sow("terms", "router_z", Sum.of(jnp.sum(z_bt * valid_bt1[..., 0], axis=1) / count_b1[:, 0]))


def within(capacities: Sequence[int], experts_btk: jax.Array, segments_bt: jax.Array) -> jax.Array:
    """Whether a choice (b, t, k) is among the first `capacities[n]` that tokens of its segment, which has n,
    make of its expert; False for those of padding, segment 0."""
    k = experts_btk.shape[-1]
    _, sizes_bt = _places(segments_bt)
    places_bn, _ = _places(experts_btk.reshape(len(experts_btk), -1), jnp.repeat(segments_bt, k, axis=1))
    most_bt1 = jnp.where(segments_bt > 0, jnp.array(capacities)[sizes_bt], 0)[..., None]
    return places_bn.reshape(experts_btk.shape) < most_bt1


def _places(*keys_bn: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The place of each entry of a row among those with the same keys, and the number of these."""
    order_bn = jnp.lexsort(keys_bn, axis=1)
    back_bn, index_n = jnp.argsort(order_bn, axis=1), jnp.arange(order_bn.shape[1])
    differs = [jnp.diff(jnp.take_along_axis(key_bn, order_bn, axis=1), axis=1) != 0 for key_bn in keys_bn]
    edge_bm = functools.reduce(jnp.logical_or, differs)
    begins_bn, ends_bn = (jnp.pad(edge_bm, ((0, 0), at), constant_values=True) for at in ((1, 0), (0, 1)))
    first_bn = jax.lax.cummax(jnp.where(begins_bn, index_n, 0), axis=1)
    last_bn = jax.lax.cummin(jnp.where(ends_bn, index_n, len(index_n)), axis=1, reverse=True)
    ordered = index_n - first_bn, last_bn - first_bn + 1
    place_bn, number_bn = (jnp.take_along_axis(x_bn, back_bn, axis=1) for x_bn in ordered)
    return place_bn, number_bn


class Routes(Protocol):
    """Which expert computes which tokens, and where they lie."""

    @property
    def hidden(self) -> tuple[str | None, ...]:
        """The logical axes of what an expert's network computes."""

    def deal(self, x_btd: jax.Array) -> jax.Array:
        """The tokens as the experts read them: (b, t, d) -> (..., d)."""

    def multiply(self, x: jax.Array, kernel_eio: jax.Array, names: Any, dtype: str) -> jax.Array:
        """The product of each token with its expert's kernel, whose logical axes are `names`."""

    def spread(self, bias_eo: jax.Array) -> jax.Array:
        """The bias of each token's expert."""

    def collect(self, y: jax.Array) -> jax.Array:
        """The results of the k experts of each token: (..., d) -> (b, t, k, d)."""


class ExpertLinear(nn.Module):
    """`Linear` with a kernel and a bias of each expert: y = x . kernel_i + bias_i for tokens of expert i."""

    features: tuple[int]
    names: tuple[str, str]
    num_experts: int
    routes: Any
    use_bias: bool = True
    dtype: str = "float32"
    init_scale: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(..., i) -> (..., o), of type `dtype`; the kernel is (e, i, o)."""
        normal = nn.initializers.normal(math.sqrt(self.init_scale / x.shape[-1]))
        init = nn.with_logical_partitioning(normal, ("expert", *self.names))
        shape = self.num_experts, x.shape[-1], *self.features
        kernel: Any = self.param("kernel", init, shape, jnp.float32)
        y = self.routes.multiply(x, kernel, self.names, self.dtype)
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("expert", self.names[1]))
            bias: Any = self.param("bias", zeros, (self.num_experts, *self.features), jnp.float32)
            y = (y.astype(jnp.float32) + self.routes.spread(bias)).astype(y.dtype)
        return y


@dataclasses.dataclass(frozen=True)
class Buffers:
    """Routes with c slots of each expert in each row: buffers (b, e, c, d).

    Rows are divided over devices when tokens are put into slots; in between the buffers are divided by expert
    instead, so that tokens, not kernels, go over the network, by all-to-all.
    """

    slots_bn: jax.Array
    """The slot, e c of them, of each choice, t k of them; one too large if there is none left."""
    shape: tuple[int, int, int]
    """(e, c, k)."""
    hidden: ClassVar[tuple[str | None, ...]] = ("group", "expert", None, "mlp")

    @classmethod
    def of(cls, experts_btk: jax.Array, kept_btk: jax.Array, num_experts: int, capacity: int) -> "Buffers":
        """Gives slots to the kept choices of a row, in order; of an expert at most `capacity` are kept."""
        b, _, k = experts_btk.shape
        experts_bn, kept_bn = experts_btk.reshape(b, -1), kept_btk.reshape(b, -1)
        chosen_bne = (experts_bn[..., None] == jnp.arange(num_experts)) & kept_bn[..., None]
        before_bne = jnp.cumsum(chosen_bne, axis=1) - chosen_bne
        slots_bn = experts_bn * capacity + jnp.sum(before_bne * chosen_bne, axis=-1)
        return cls(jnp.where(kept_bn, slots_bn, num_experts * capacity), (num_experts, capacity, k))

    def deal(self, x_btd: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, e, c, d); empty slots are 0."""
        (e, c, k), (b, t, d) = self.shape, x_btd.shape
        tokens_n = jnp.arange(t * k) // k
        source_bs = jax.vmap(lambda i_n: jnp.full(e * c, t).at[i_n].set(tokens_n, mode="drop"))(self.slots_bn)
        x_becd = _by_row(_taken(x_btd, source_bs).reshape(b, e, c, d))
        return nn.with_logical_constraint(x_becd, ("group", "expert", None, None))

    def multiply(self, x_beci: jax.Array, kernel_eio: jax.Array, names: Any, dtype: str) -> jax.Array:
        """(b, e, c, i) . (e, i, o) -> (b, e, c, o)."""
        product = functools.partial(contract, dtype=dtype)
        return jax.vmap(product, in_axes=(1, 0), out_axes=1)(x_beci, kernel_eio)

    def spread(self, bias_eo: jax.Array) -> jax.Array:
        """(e, o) -> (e, 1, o)."""
        return bias_eo[:, None]

    def collect(self, y_becd: jax.Array) -> jax.Array:
        """(b, e, c, d) -> (b, t, k, d); 0 for choices without a slot."""
        y_becd = nn.with_logical_constraint(y_becd, ("group", "expert", None, None))
        y_bsd = _by_row(y_becd).reshape(y_becd.shape[0], -1, y_becd.shape[-1])
        y_bnd = _taken(y_bsd, self.slots_bn)
        return y_bnd.reshape(len(y_bnd), -1, self.shape[2], y_bnd.shape[-1])


@dataclasses.dataclass(frozen=True)
class Sorted:
    """Routes without a capacity: the choices of the tokens that a device holds, sorted by expert, (p, n, d)
    for p parts of rows and of the sequences in them. Kernels go over the network, as those of `fsdp`."""

    order_pn: jax.Array
    experts_pn: jax.Array
    sizes_pe: jax.Array
    k: int
    parts: tuple[int, int, int, int]
    """Parts of the rows, rows of each, parts of the sequences, and tokens of each."""

    @classmethod
    def of(cls, experts_btk: jax.Array, num_experts: int) -> "Sorted":
        """Sorts the choices of each device."""
        (b, t, k), rows, columns = experts_btk.shape, sharded_over("batch")[1], sharded_over("length")[1]
        rows, columns = (rows, columns if t % columns == 0 else 1) if b % rows == 0 else (1, 1)
        parts = rows, b // rows, columns, t // columns
        experts_pn = _cut(experts_btk, parts).reshape(rows * columns, -1)
        order_pn = jnp.argsort(experts_pn, axis=-1, stable=True)
        sizes_pe = jnp.sum(experts_pn[..., None] == jnp.arange(num_experts), axis=1, dtype=jnp.int32)
        return cls(order_pn, jnp.take_along_axis(experts_pn, order_pn, axis=-1), sizes_pe, k, parts)

    @property
    def over(self) -> str:
        """The logical axis of the parts."""
        return "token" if self.parts[2] > 1 else "batch"

    @property
    def hidden(self) -> tuple[str | None, ...]:
        """The logical axes of what an expert's network computes."""
        return self.over, None, "mlp"

    def deal(self, x_btd: jax.Array) -> jax.Array:
        """(b, t, d) -> (p, n, d)."""
        x_pmd = nn.with_logical_constraint(_cut(x_btd, self.parts), (self.over, None, None))
        return _taken(x_pmd, self.order_pn // self.k)

    def multiply(self, x_pni: jax.Array, kernel_eio: jax.Array, names: Any, dtype: str) -> jax.Array:
        """(p, n, i) . (e, i, o) -> (p, n, o)."""
        over = [sharded_over(name)[0] if name == "mlp" else () for name in names]
        kernel_eio = kernel_eio.astype(dtype) if is_quantized(kernel_eio) else kernel_eio
        rows = sharded_over(self.over)[0] if len(x_pni) > 1 else ()
        return grouped(x_pni, kernel_eio, self.sizes_pe, jnp.dtype(dtype), rows, *over)

    def spread(self, bias_eo: jax.Array) -> jax.Array:
        """(e, o) -> (p, n, o)."""
        return bias_eo[self.experts_pn]

    def collect(self, y_pnd: jax.Array) -> jax.Array:
        """(p, n, d) -> (b, t, k, d)."""
        y_pnd = _taken(y_pnd, jnp.argsort(self.order_pn, axis=-1))
        rows, height, columns, width = self.parts
        y = y_pnd.reshape(rows, columns, height, width, self.k, -1).swapaxes(1, 2)
        return y.reshape(rows * height, columns * width, self.k, -1)


def _cut(x_btd: jax.Array, parts: tuple[int, int, int, int]) -> jax.Array:
    """(b, t, d) -> (p, b t / p, d), rows and sequences in `parts`."""
    x = x_btd.reshape(*parts, x_btd.shape[-1]).swapaxes(1, 2)
    return x.reshape(parts[0] * parts[2], parts[1] * parts[3], x_btd.shape[-1])


def _taken(x_bsd: jax.Array, indices_bn: jax.Array) -> jax.Array:
    """(b, n, d): entries of each row; 0 for an index that is too large."""
    return jax.vmap(lambda x_sd, i_n: x_sd.at[i_n].get(mode="fill", fill_value=0))(x_bsd, indices_bn)


def _by_row(x_becd: jax.Array) -> jax.Array:
    return nn.with_logical_constraint(x_becd, ("batch", None, None, None))
