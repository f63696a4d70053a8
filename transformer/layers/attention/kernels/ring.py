"""Ring attention over a sequence that is sharded over devices: keys and values are passed around."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from transformer.devices import sharded_over
from transformer.layers.attention.kernels import splash_parts
from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.attention.kernels.blockwise import backward, blockwise, finite, forward, joined
from transformer.layers.attention.kernels.scores import Scoring, saved
from transformer.layers.attention.kernels.splash import factors
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Pattern
from transformer.layers.attention.whole_heads import repeated

Pairs = list[tuple[Any, Any]]
"""Indices of (block of queries, block of keys) that are not masked."""

Inputs = tuple[jax.Array, jax.Array, jax.Array, Any, Any]


def ring(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
) -> jax.Array:
    """The same as `reference`, on a mesh whose rules shard the logical axis "length" over n > 1 devices.

    In n rounds each device attends with its queries to the keys and values that it currently has, and passes
    these on to the next device. Two parts with outputs o, o' and log-sum-exps z, z' of their scores combine
    to z'' = log(e^z + e^z') and the output o e^(z - z'') + o' e^(z' - z''). In the backward pass the
    gradients of keys and values are passed around with them, and are back on their device after n rounds.

    Under a causal mask the first devices would be idle in most rounds. So the sequence is split into 2 n
    blocks, and device i gets the i-th block from the start and the i-th from the end: then every device
    computes two pairs of blocks in every round. A causal window needs no such order: it ends after the rounds
    with the keys that it reaches. On one device this is `blockwise`.

    Pairs of blocks are computed by `splash_parts` where it serves, otherwise as `blockwise` does.

    Source: Liu et al. 2023 (Ring Attention); the order: Zhu 2023 (zigzag, of ring-flash-attention), after
    Brandon et al. 2023 (Striped Attention).
    """
    axes, devices = sharded_over("length")
    if devices == 1:
        options: Any = {"dropout_rate": dropout_rate, "dropout_rng": dropout_rng}
        return blockwise(q_bthk, k_bsgk, v_bsgk, mask=mask, scoring=scoring, **options)
    scoring = scoring or Scoring()
    fused = not splash_parts.serves(q_bthk, k_bsgk, v_bsgk, mask, scoring, dropout_rate)
    if fused:
        k_bsgk, v_bsgk = repeated(k_bsgk), repeated(v_bsgk)
        q_bthk, k_bsgk = factors(q_bthk, k_bsgk, scoring)
        scoring = Scoring(sinks_h=scoring.sinks_h, soft_cap=scoring.soft_cap, scale=1.0)
    (b, t), s = q_bthk.shape[:2], k_bsgk.shape[1]

    def rows(x_bt: jax.Array | None, length: int) -> jax.Array | None:
        return None if x_bt is None else jnp.broadcast_to(x_bt, (b, length))

    queries = q_bthk, rows(mask.query_segments_bt, t), rows(scoring.query_positions_bt, t)
    about_keys = mask.key_segments_bs, mask.key_valid_bs, scoring.key_positions_bs
    keys = k_bsgk, v_bsgk, *(rows(x, s) for x in about_keys)
    learned = scoring.params, scoring.sinks_h
    rest = dataclasses.replace(
        scoring, query_positions_bt=None, key_positions_bs=None, params=None, sinks_h=None
    )
    passes = (splash_parts.forward, splash_parts.backward) if fused else ()
    way = _Ring(axes, devices, mask.causal, mask.pattern, t // devices, *passes)
    of_batch, parts = sharded_over("batch")
    of_batch = () if b % parts else of_batch  # otherwise the compiler would gather the gradients
    part = PartitionSpec(of_batch or None, axes)
    of_heads = sharded_over("heads")[0] if fused else ()
    whole, heads = PartitionSpec(*part, of_heads or None), PartitionSpec(of_heads or None)
    every = {*jax.sharding.get_abstract_mesh().axis_names}  # for a kernel that the compiler cannot divide
    local = jax.shard_map(
        functools.partial(way.attend, scoring=rest),
        in_specs=((whole, part, part), (whole, whole, part, part, part), (PartitionSpec(), heads)),
        out_specs=whole,
        axis_names=every if fused else {*axes, *of_batch},
        check_vma=False,
    )
    return local(queries, keys, learned)


def serves(q_bthk, k_bsgk, v_bsgk, mask: Mask, scoring: Scoring, dropout_rate: float) -> str:
    """Why `ring` does not support these inputs; "" if it does."""
    devices, t, s = sharded_over("length")[1], q_bthk.shape[1], k_bsgk.shape[1]
    if devices == 1:
        return ""
    if mask.pattern is not None and not (mask.causal and mask.pattern.relative and mask.pattern.reach):
        return f"of patterns it has only causal windows, and this one is {mask.pattern}"
    if dropout_rate:
        return "it has no dropout of weights"
    if mask.start or (mask.causal and t != s):
        return "the queries do not stand where the keys do"
    parts = 2 * devices if mask.causal and mask.pattern is None else devices
    for length in (t, s):
        if length % parts:
            return f"{length} tokens cannot be cut into {parts} equal blocks for {devices} devices"
    return ""


def without(*inputs: Any) -> dict[str, str]:
    """Why which fused kernels do not compute the blocks."""
    if sharded_over("length")[1] == 1:
        return {}
    refusals = {"cudnn": "its backward pass takes all keys at once", "splash": splash_parts.serves(*inputs)}
    return {name: refusal for name, refusal in refusals.items() if refusal}


@dataclasses.dataclass(frozen=True)
class _Ring:
    """The computation on one device, with `length` queries. A leading axis r of its arrays is that of its
    blocks: two in the zigzag order, otherwise one. `forward` and `backward` compute pairs."""

    axes: tuple[str, ...]
    devices: int
    causal: bool
    pattern: Pattern | None
    length: int
    forward: Any = forward
    backward: Any = backward

    @property
    def zigzag(self) -> bool:
        """Whether the device has the i-th block from the start and the i-th from the end."""
        return self.causal and self.pattern is None

    @property
    def rounds(self) -> int:
        """The number of rounds until all visible keys have passed."""
        reach = None if self.pattern is None else self.pattern.reach
        return min(self.devices, self.devices if reach is None else -(-(reach - 1) // self.length) + 1)

    def further(self, step: Any, carry: Any) -> Any:
        """The carry after `step(n, carry)` in all rounds n but the first."""
        if self.pattern is None:
            return jax.lax.fori_loop(1, self.rounds, step, carry)
        for n in range(1, self.rounds):  # the masks depend on n
            carry = step(n, carry)
        return carry

    def attend(self, queries: Any, keys: Any, learned: Any, scoring: Scoring) -> jax.Array:
        """The device's part (b, t / n, ...) of each input -> (b, t / n, h, k)."""
        (q_rbthk, *about_queries), keys = jax.tree.map(self.take, (queries, keys))
        k_rbsgk, v_rbsgk, *about_keys = keys
        q_rbhtk, k_rbgsk, v_rbgsk = (x.swapaxes(2, 3) for x in (q_rbthk, k_rbsgk, v_rbsgk))
        out_rbhtk = _attend(q_rbhtk, k_rbgsk, v_rbgsk, learned, (about_queries, about_keys, scoring), self)
        return self.give_back(out_rbhtk.swapaxes(2, 3))

    def take(self, x_bt: jax.Array) -> jax.Array:
        """This device's part of the sequence -> the blocks that it computes, (r, b, t / n / r, ...)."""
        if not self.zigzag:
            return x_bt[None]
        even, odd = (
            jax.lax.ppermute(x, self.axes, self._moves(n)) for n, x in enumerate(jnp.split(x_bt, 2, axis=1))
        )
        return self._turn(jnp.stack([even, odd]))

    def give_back(self, x_rbt: jax.Array) -> jax.Array:
        """The inverse of `take`."""
        if not self.zigzag:
            return x_rbt[0]
        moves = ([(there, here) for here, there in self._moves(n)] for n in range(2))
        halves = zip(self._turn(x_rbt), moves, strict=True)
        return jnp.concatenate([jax.lax.ppermute(x, self.axes, pairs) for x, pairs in halves], axis=1)

    def _moves(self, odd: int) -> list[tuple[int, int]]:
        """(source, destination) of even or odd blocks: device i has the blocks 2 i and 2 i + 1 and needs i
        and 2 n - 1 - i, one of which is even."""
        last = 2 * self.devices - 1
        return [(i, min(2 * i + odd, last - 2 * i - odd)) for i in range(self.devices)]

    def _turn(self, x_rbt: jax.Array) -> jax.Array:
        """Swaps between the order (first, last) and the order (even, odd) of the device's two blocks."""
        return jnp.where(self.index % 2 == 0, x_rbt, x_rbt[::-1])

    @property
    def index(self) -> jax.Array:
        """The index of the device in the ring."""
        return jax.lax.axis_index(self.axes)

    def on(self, tree: Any, by: int = 1) -> Any:
        """The arrays of the previous device, passed on."""
        moves = [(i, (i + by) % self.devices) for i in range(self.devices)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axes, moves), tree)

    def home(self, tree: Any) -> Any:
        """Arrays that were passed on in every round, on the devices where they started."""
        return tree if self.rounds == self.devices else self.on(tree, -self.rounds)

    @property
    def own(self) -> Pairs:
        """Pairs of blocks at the same place, which may be partly masked."""
        return [(0, 0), (1, 1)] if self.zigzag else [(0, 0)]

    def others(self, n: jax.Array) -> Pairs:
        """The pairs, with all keys before the queries, for the keys of the n-th previous device.

        A last block attends to all first blocks. In addition, the first block attends to the first block of
        an earlier device, and the last block to the last block of a later device.
        """
        later = (n > self.index).astype(jnp.int32)
        return [(1, 0), (later, later)] if self.zigzag else [(0, 0)]


class _Part:
    """Pairs of blocks, stacked along the batch for `blockwise`."""

    def __init__(self, queries: Any, fixed: Any, way: _Ring) -> None:
        self.queries, self.way = queries, way
        self.about_queries, _, self.scoring = fixed

    def inputs(self, keys: Any, pairs: Pairs, learned: Any, n: Any) -> Inputs:
        """The inputs of `forward` for the keys of the n-th previous device; 0: the own ones."""
        way = self.way
        at_queries, at_keys = zip(*pairs, strict=True)
        q_bhtk, (query_segments, query_positions) = self.pick((self.queries, self.about_queries), at_queries)
        k_bgsk, v_bgsk, (key_segments, key_valid, key_positions) = self.pick(keys, at_keys)
        mask = Mask(query_segments, key_segments, key_valid)
        if isinstance(n, int) and (n == 0 or way.pattern is not None):
            static: Any = {"causal": way.causal, "pattern": way.pattern, "start": n * way.length}
            mask = dataclasses.replace(mask, **static)
        if way.pattern is not None and n:
            earlier = jnp.broadcast_to(way.index >= n, k_bgsk.shape[::2])
            earlier = earlier if key_valid is None else key_valid & earlier
            mask = dataclasses.replace(mask, key_valid_bs=earlier)
        places = {"query_positions_bt": query_positions, "key_positions_bs": key_positions}
        scoring = dataclasses.replace(self.scoring, **places)
        return q_bhtk, k_bgsk, v_bgsk, learned, (mask, scoring, None)

    def pick(self, tree: Any, rows: Sequence[Any]) -> Any:
        """Blocks (r, b, ...) -> those of `rows` along the batch, (rows b, ...)."""
        return jax.tree.map(lambda x: jnp.concatenate([x[row] for row in rows]), tree)


def _parts(x_b: jax.Array, pairs: Pairs) -> jax.Array:
    return x_b.reshape(len(pairs), -1, *x_b.shape[1:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q_rbhtk, k_rbgsk, v_rbgsk, learned, fixed, way) -> jax.Array:
    return _forward(q_rbhtk, k_rbgsk, v_rbgsk, learned, fixed, way)[0]


def _forward(q_rbhtk, k_rbgsk, v_rbgsk, learned, fixed, way):
    part = _Part(q_rbhtk, fixed, way)

    def join(whole, keys, pairs, n):
        out, norm = whole
        more = way.forward(0.0, *part.inputs(keys, pairs, (learned[0], None), n))
        more_out, more_norm = (_parts(x, pairs) for x in more)
        for place, (i, _) in enumerate(pairs):
            new_out, new_norm = joined((out[i], norm[i]), (more_out[place], more_norm[place]))
            out, norm = out.at[i].set(new_out), norm.at[i].set(new_norm)
        return out, norm

    def step(n, carry):
        whole, keys = carry
        return join(whole, keys, way.others(n), n), way.on(keys)

    keys = k_rbgsk, v_rbgsk, fixed[1]
    own = way.forward(0.0, *part.inputs(keys, way.own, learned, 0))
    whole = tuple(_parts(x, way.own) for x in own)
    if way.zigzag:
        whole = join(whole, keys, [(1, 0)], None)
    (out, norm), _ = way.further(step, (whole, way.on(keys)))
    out, norm = saved(out.astype(q_rbhtk.dtype)), saved(finite(norm))
    return out, (q_rbhtk, k_rbgsk, v_rbgsk, learned, fixed, out, norm)


def _backward(way, residuals, dout_rbhtk):
    q_rbhtk, k_rbgsk, v_rbgsk, learned, fixed, out, norm = residuals
    part = _Part(q_rbhtk, fixed, way)

    def grads(keys, pairs, learned, n):
        inputs = part.inputs(keys, pairs, learned, n)
        *results, dout_bhtk = part.pick((out, norm, dout_rbhtk), [i for i, _ in pairs])
        more = way.backward(0.0, (*inputs, *results), dout_bhtk)
        return *(_parts(x, pairs) for x in more[:3]), *more[3]

    def add(total, keys, pairs, n):
        dq, dk, dv, dparams = total
        *more, more_params, _ = grads(keys, pairs, (learned[0], None), n)
        for place, (i, j) in enumerate(pairs):
            dq = dq.at[i].add(more[0][place])
            dk, dv = dk.at[j].add(more[1][place]), dv.at[j].add(more[2][place])
        return dq, dk, dv, jax.tree.map(jnp.add, dparams, more_params)

    def step(n, carry):
        total, keys = carry
        dq, dk, dv, dparams = add(total, keys, way.others(n), n)
        return (dq, *way.on((dk, dv)), dparams), way.on(keys)

    keys = k_rbgsk, v_rbgsk, fixed[1]
    *own, dsinks_h = grads(keys, way.own, learned, 0)
    dq, dk, dv, dparams = add(own, keys, [(1, 0)], None) if way.zigzag else own
    start = (dq, *way.on((dk, dv)), dparams), way.on(keys)
    (dq, dk, dv, dparams), _ = way.further(step, start)
    gradients = dq, *way.home((dk, dv)), (dparams, dsinks_h)
    return *jax.tree.map(lambda x, y: x.astype(y.dtype), gradients, residuals[:4]), None


_attend.defvjp(_forward, _backward)


RING = Kernel(ring, serves)
