"""Measurements inside of layers, sown as terms: the size of activations, the entropy of attention, logits."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.attention.kernels.scores import Scoring, masked_softmax
from transformer.layers.attention.masks import Mask
from transformer.layers.block import Block
from transformer.layers.mixers import Attention
from transformer.sums import Sum

QUERIES = 256
"""About how many tokens of a batch attention and logits are measured for."""

ACTIVATION = "norms/activation"


@dataclass(frozen=True)
class Measures:
    """A flax method interceptor that sows measurements of a model's layers into "terms" (see `named_terms`).

    With `norms`, of each block: `norms/activation/STACK`, the mean square of its output over tokens and
    dimensions, without padding. With `attention`, of each attention of a block: `attention/entropy/STACK`,
    the mean of -sum_s w_s log w_s over heads and queries, in nats, and `attention/largest_score/STACK`, the
    largest allowed score; and of a model with an `unembed`, `logits/largest`. The last three are those of
    `QUERIES` tokens of the first rows; of microbatches, the largest values are averaged. What is measured has
    no gradient.
    Source: Zhai et al. 2023 (entropy collapse), section 3; Dehghani et al. 2023 (ViT-22B), section 2.
    """

    norms: bool = False
    attention: bool = False

    def __call__(self, function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        """Calls `function`, a method of a module, and sows what it shows."""
        result, module, name = function(*args, **kwargs), context.module, context.method_name
        if self.norms and isinstance(module, Block) and name == "__call__":
            segments_bt = kwargs.get("mask", Mask()).query_segments_bt
            sow(module, f"{ACTIVATION}/{_stack(module)}", mean_square(result[0], segments_bt))
        if self.attention and isinstance(module, Attention) and name == Attention.run_kernel.__name__:
            scored = kwargs["mask"], kwargs["scoring"], module.weights
            entropy, largest = attention_measures(args[0], args[1], *scored)
            sow(module, f"{module.name}/entropy/{_stack(module.parent)}", entropy)
            sow(module, f"{module.name}/largest_score/{_stack(module.parent)}", largest)
        if self.attention and name in ("hidden", "recur") and hasattr(module, "unembed"):
            x_btd = result[0] if isinstance(result, tuple) else result
            rows, places = _sample(*x_btd.shape[:2])
            logits_btv = module.unembed(jax.lax.stop_gradient(x_btd)[:rows, places])
            sow(module, "logits/largest", Sum.of(jnp.max(logits_btv)))
        return result

    def finished(self, name: str, value: Sum) -> Iterable[tuple[str, Sum]]:
        """A term as it is logged: the root of a mean square, and no value for all layers together."""
        of_layers = name.startswith((f"{ACTIVATION}/", "attention/", "cross_attention/"))
        if of_layers and not name.rpartition("/")[2].isdecimal():
            return
        if name.startswith(f"{ACTIVATION}/"):
            value = Sum.of(jnp.sqrt(value.total / jnp.maximum(value.weight, 1e-9)))
        yield name, value


def sow(module: Any, name: str, value: Sum) -> None:
    """Sows a term, which has no gradient, unless the model is being initialised."""
    if not module.is_initializing():
        module.sow("terms", name, jax.lax.stop_gradient(value))


def mean_square(x_btd: jax.Array, segments_bt: jax.Array | None) -> Sum:
    """The mean of x^2 over tokens and dimensions, in float32, without the tokens of segment 0."""
    square_bt = jnp.mean(jnp.square(jax.lax.stop_gradient(x_btd).astype(jnp.float32)), axis=-1)
    return Sum.of(square_bt, None if segments_bt is None else segments_bt > 0)


def attention_measures(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    mask: Mask,
    scoring: Scoring,
    weigh: Callable[..., jax.Array] = masked_softmax,
) -> tuple[Sum, Sum]:
    """The mean entropy of the weights, in nats, and the largest allowed score of a sample of the queries."""
    rows, places_n = _sample(*q_bthk.shape[:2])

    def keys(x_bs: jax.Array | None) -> jax.Array | None:
        return x_bs if x_bs is None else x_bs[:rows]

    def queries(x_bt: jax.Array | None) -> jax.Array | None:
        return x_bt if x_bt is None or x_bt.shape[1] == 1 else x_bt[:rows, places_n]

    q_bhnk, k_bgsk = (
        jax.lax.stop_gradient(x).swapaxes(1, 2) for x in (q_bthk[:rows, places_n], k_bsgk[:rows])
    )
    mask = dataclasses.replace(
        mask,
        query_segments_bt=queries(mask.query_segments_bt),
        key_segments_bs=keys(mask.key_segments_bs),
        key_valid_bs=keys(mask.key_valid_bs),
        query_indices_bt=mask.start + places_n[None],
        query_positions_bt=queries(mask.query_positions_bt),
        key_positions_bs=keys(mask.key_positions_bs),
    )
    scoring = dataclasses.replace(
        jax.lax.stop_gradient(scoring),
        query_positions_bt=queries(scoring.query_positions_bt),
        key_positions_bs=keys(scoring.key_positions_bs),
    )
    scores_bhns = scoring.scores(q_bhnk, k_bgsk)
    allowed_bhns = mask.dense(len(places_n), k_bsgk.shape[1])
    weights_bhns = weigh(scores_bhns, allowed_bhns, scoring.sinks_h)
    entropy_bhn = jax.scipy.special.entr(weights_bhns).sum(axis=-1)
    segments_bn = mask.query_segments_bt
    real_b1n = jnp.ones((1, 1, 1)) if segments_bn is None else (segments_bn > 0)[:, None]
    largest = jnp.max(jnp.where(allowed_bhns & (real_b1n > 0)[..., None], scores_bhns, -jnp.inf))
    return Sum.of(entropy_bhn, real_b1n), Sum.of(largest)


def _sample(b: int, t: int) -> tuple[int, jax.Array]:
    """The measured rows of b and places in rows of t tokens: about `QUERIES` in all."""
    count = min(t, QUERIES)
    return min(b, max(1, QUERIES // t)), jnp.arange(count) * t // count


def _stack(block: Any) -> str:
    """The name of a block's stack; the block is called `blocks` or `blocks/KIND`."""
    return block.name.partition("/")[0]
