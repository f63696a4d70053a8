"""Self-attention weights of a trained model and the names of its tokens, for notebooks and plots."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.tree_util import DictKey
from numpy.typing import ArrayLike

from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.training.experiment import Params

PADDED = 64
"""Sequences are padded to a multiple of this length, so that few shapes are compiled."""

MAX_PLOTTED = 16
"""The most tokens that a plot shows."""

AttentionMap = tuple[np.ndarray, list[str], list[str]]
"""Attention weights (h, t, s), the names of the t query tokens and of the s key tokens."""


def read_decoder(model: Any, tokens_bt: Any, segments_bt: Any, types_bt: Any) -> Any:
    """Applies the blocks of a `Decoder`."""
    return model.hidden(tokens_bt, segments_bt=segments_bt)


def read_encoder(model: Any, tokens_bt: Any, segments_bt: Any, types_bt: Any) -> Any:
    """Applies the blocks of a model's `TextEncoder`."""
    return model.encoder(tokens_bt, segments_bt=segments_bt, types_bt=types_bt)


def attention_weights(
    model: Any,
    params: Params,
    tokens: ArrayLike,
    types: ArrayLike | None = None,
    *,
    read: Callable[..., Any] = read_decoder,
    layer: int = -1,
) -> np.ndarray:
    """The self-attention weights (h, t, t) of a layer (-1: the last) over t tokens; `types` are an encoder's
    token types.

    Raises:
      UserError: there is no such layer.
    """
    count = len(np.asarray(tokens))
    width = min(-(-count // PADDED) * PADDED, model.config.max_length)

    def padded(values: ArrayLike) -> np.ndarray:
        return np.pad(np.asarray(values, np.int32), (0, width - count))[None]

    arrays = [
        padded(values) for values in (tokens, np.ones(count), np.zeros(count) if types is None else types)
    ]
    weights_htt = _attention_weights(params, *arrays, model=model, read=read, layer=layer)
    return on_host(weights_htt).astype(np.float32)[:, :count, :count]


@functools.partial(jax.jit, static_argnames=("model", "read", "layer"))
def _attention_weights(
    params: Params, *inputs: Any, model: nn.Module, read: Callable[..., Any], layer: int
) -> jax.Array:
    # With "intermediates" mutable, attention sows its weights, and computes them without a fused kernel.
    _, sown = model.apply(
        {"params": params}, method=lambda bound: read(bound, *inputs), mutable="intermediates"
    )
    weights_bhts = sown_weights(sown)
    layers = len(weights_bhts)
    if not -layers <= layer < layers:
        raise UserError(f"layer: {layer}; the model has {layers}, counted from 0 (or back from -1)")
    return weights_bhts[layer][0]


def sown_weights(sown: Any) -> list[jax.Array]:
    """The self-attention weights (b, h, t, t) of each layer that has some, from what the blocks sowed:
    recurrent layers have none."""
    return [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(sown)
        if {"attention", "weights"} <= {entry.key for entry in path if isinstance(entry, DictKey)}
    ]


def encoder_attention(
    model: Any, params: Params, framed: tuple[ArrayLike, ArrayLike], data: Any, layer: int = -1
) -> AttentionMap:
    """The weights (h, t, t) of an encoder's layer over `framed`, (tokens, types), and the names of query and
    key tokens; `data` has `tokenizer` and `special_tokens`."""
    tokens, types = framed
    tokens_of = data.special_tokens
    special = {tokens_of.cls: "[CLS]", tokens_of.sep: "[SEP]", tokens_of.mask: "[MASK]"}
    names = token_names(data.tokenizer, np.asarray(tokens).tolist(), special)
    return attention_weights(model, params, tokens, types, read=read_encoder, layer=layer), names, names


def token_names(tokenizer: Tokenizer, tokens: Iterable[int], special: dict[int, str]) -> list[str]:
    """A label for each token: its text, or its name if it has no text."""
    return [special.get(i) or tokenizer.decode([i]) or tokenizer.name(i) or "·" for i in tokens]


def first_tokens(attention: AttentionMap) -> AttentionMap:
    """The weights between the first `MAX_PLOTTED` tokens, for a plot."""
    weights_hts, queries, keys = attention
    return weights_hts[:, :MAX_PLOTTED, :MAX_PLOTTED], queries[:MAX_PLOTTED], keys[:MAX_PLOTTED]
