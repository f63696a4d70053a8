"""A Transformer in float64 NumPy, one sequence at a time, over `tests/layers/numpy_attention.py`."""

import functools
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from scipy import special

from tests.layers.numpy_attention import attention, layer_norm, linear, rms_norm, sinusoid


def exact(params: Any) -> Any:
    """The parameters in float64."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def decoder(params: Any, c: Any, tokens_t, segments_t=None, positions_t=None) -> np.ndarray:
    """Logits (t, v) of the next tokens; a token attends to those before it in its own segment."""
    at_t = np.arange(len(tokens_t)) if positions_t is None else np.asarray(positions_t)
    segments_t = np.ones(len(tokens_t), int) if segments_t is None else np.asarray(segments_t)
    i = np.arange(len(tokens_t))
    allowed_ts = (i[:, None] >= i) & (segments_t[:, None] == segments_t)
    blocks = with_values(params, c, tokens_t)
    x_td, _ = stack(c, blocks, embed(params, c, tokens_t, at_t), at_t, allowed_ts)
    return logits(params, c, last_norm(params, c, "final_norm", x_td))


def recurrent_decoder(params: Any, c: Any, tokens_t, segments_t, memory: Sequence, segments_m) -> tuple:
    """The states (t, d) of a segment, and its inputs of each layer (Dai et al. 2019, section 3.2).

    `memory` has for each layer the parameters and the inputs (m, d) for the m tokens before the segment, of
    which keys and values are made: a memory has no gradients, neither of what it remembers nor of these
    projections."""
    m, t = len(segments_m), len(tokens_t)
    at_s, segments_s = np.arange(m + t), np.concatenate([segments_m, segments_t])
    allowed_ts = (at_s[m:, None] >= at_s) & (np.asarray(segments_t)[:, None] == segments_s)
    x_td = embed(params, c, tokens_t, at_s[m:])
    x_td, inputs = stack(c, params["blocks"], x_td, at_s, allowed_ts, memory=memory)
    return last_norm(params, c, "final_norm", x_td), inputs


def encoder(params: Any, c: Any, tokens_t, types_t, segments_t, positions_t) -> np.ndarray:
    """States (t, d); a token attends to all of its segment (Devlin et al. 2019, section 3). The embeddings
    may be normalised, as in the released code; with `token_type_bias` all tokens have type 0."""
    trunk, allowed_tt = params["trunk"], segments_t[:, None] == segments_t
    x_td = embed({"embedding": params["embedding"], **trunk}, c, tokens_t, positions_t)
    if "token_types" in params:
        x_td = x_td + params["token_types"]["table"][0 if c.token_type_bias else types_t]
    x_td = norm(trunk, c, "embedding_norm", x_td) if c.embedding_norm else x_td
    x_td, _ = stack(c, trunk["blocks"], x_td, positions_t, allowed_tt, causal=False)
    return last_norm(trunk, c, "final_norm", x_td)


def encoder_decoder(params: Any, c: Any, source_s, tokens_t) -> np.ndarray:
    """Logits (t, v) of the next target tokens (Vaswani et al. 2017)."""
    at_s, at_t = np.arange(len(source_s)), np.arange(len(tokens_t))
    everything_ss = np.ones((len(source_s), len(source_s)), bool)
    source = params if c.share_embeddings else {"embedding": params["source_embedding"]}
    position = {"position": params["source_position"]} if "source_position" in params else {}
    x_sd = embed({**source, **position}, c, source_s, at_s)
    x_td = embed(params, c, tokens_t, at_t)
    if c.embedding_norm:  # Lewis et al. 2020
        x_sd, x_td = norm(params, c, "source_embedding_norm", x_sd), norm(params, c, "embedding_norm", x_td)
    x_sd, _ = stack(c, params["encoder_blocks"], x_sd, at_s, everything_ss, causal=False)
    memory_sd = last_norm(params, c, "encoder_norm", x_sd)
    blocks = params["decoder_blocks"]
    x_td, _ = stack(c, blocks, x_td, at_t, at_t[:, None] >= at_t, source_sd=memory_sd)
    return logits(params, c, last_norm(params, c, "final_norm", x_td))


def embed(params: Any, c: Any, tokens_t, at_t) -> np.ndarray:
    """Embeddings, times sqrt(d) if `scale_embeddings`, plus absolute positions."""
    x_td = params["embedding"]["table"][tokens_t] * (math.sqrt(c.d_model) if c.scale_embeddings else 1)
    if c.position == "sinusoidal":
        return x_td + sinusoid(at_t, c.d_model, c.position_base)
    if c.position == "sinusoidal_halves":  # the sines in the first half (Marian)
        table_td = sinusoid(at_t, c.d_model, c.position_base)
        return x_td + np.concatenate([table_td[:, ::2], table_td[:, 1::2]], axis=1)
    placed = c.position in ("learned", "learned_t5")
    return x_td + params["position"]["table"][c.position_offset + at_t] if placed else x_td


def with_values(params: Any, c: Any, tokens_t) -> list[tuple[Any, Any]]:
    """The layers, the attention of those in `value_embeddings` with lambda E[token] (t, g, k), to be added to
    its values; one after another the layers have columns of the table (Jordan et al. 2024)."""
    found, first = layers(c, params["blocks"]), 0
    for n, i in enumerate(c.value_embeddings):
        kind, p = found[i]
        g, k = kind.num_kv_heads or kind.num_heads, kind.head_dim
        rows_te = params["value_embedding"]["table"][tokens_t][:, first : first + g * k]
        added_tgk = params["value_embedding"]["scale"][n] * rows_te.reshape(len(tokens_t), g, k)
        found[i], first = (kind, p | {"attention": p["attention"] | {"added": added_tgk}}), first + g * k
    return found


def logits(params: Any, c: Any, x_td) -> np.ndarray:
    """Of the normalised states, which T5 divides by sqrt(d); Marian adds a bias."""
    x_td = x_td / math.sqrt(c.d_model) if c.scale_logits else x_td
    return capped(x_td @ head(params), c.logit_soft_cap) + params.get("output_bias", 0.0)


def head(params: Any) -> np.ndarray:
    """The output matrix (d, v)."""
    return params["unembedding"]["kernel"] if "unembedding" in params else params["embedding"]["table"].T


def capped(logits_tv, cap: float) -> np.ndarray:
    """Gemma 2's limit of the final logits (Gemma Team 2024, section 2)."""
    return cap * np.tanh(logits_tv / cap) if cap else logits_tv


def stack(c, blocks, x_td, at_s, allowed_ts, *, memory=(), source_sd=None, causal=True) -> tuple:
    """All blocks, and the input (t, d) of each; the queries are the last of the positions `at_s`."""
    inputs, outputs = [], []
    in_turn = blocks if isinstance(blocks, list) else layers(c, blocks)
    depth = len(in_turn)
    for n, (kind, p) in enumerate(in_turn):
        mirrored = depth - 1 - n
        if c.skips and mirrored < depth // 2:  # Jordan et al. 2024
            x_td = x_td + p["skip"] * outputs[mirrored]
        inputs.append(x_td)
        seen_ts, before = allowed_ts & windowed(kind, allowed_ts.shape), memory[n : n + 1]
        x_td = block(kind, p, x_td, at_s, seen_ts, before, source_sd, causal)
        outputs.append(x_td)
    return x_td, inputs


def layers(c: Any, blocks: Any) -> list[tuple[Any, Any]]:
    """The config and the parameters of each layer, of which those of one kind may be a tree of their own."""
    kinds = [c.kinds[name] for name in c.layers or ("",)]
    if c.layers and set(blocks) == set(c.layers):
        names, at = [c.layers[n % len(kinds)] for n in range(c.num_layers)], dict.fromkeys(c.layers, -1)
        found = []
        for n, name in enumerate(names):
            at[name] += 1
            found.append((kinds[n % len(kinds)], layer(blocks[name], at[name])))
        return found
    depth = max(len(leaf) for leaf in jax.tree.leaves(blocks))
    return [(kinds[n % len(kinds)], layer(blocks, n)) for n in range(depth)]


def layer(blocks: Any, n: int) -> Any:
    """The parameters of a layer; arrays of one entry are those of all layers."""
    return jax.tree.map(lambda x: x[n % len(x)], blocks)


def block(c, p, x_td, at_s, allowed_ts, memory, source_sd, causal) -> np.ndarray:
    """Attention, to a memory too, cross-attention to a source, and the feed-forward network."""
    before = [
        (own, y if c.norm_placement == "post" else norm(own, c, "attention_norm", y)) for own, y in memory
    ]

    def attend_alone(y_td):
        # Plain attention has no parameters.
        sources = [(own.get("attention", {}), y_sd) for own, y_sd in [*before, (p, y_td)]]
        return attention(c, sources[-1][0], y_td, sources, at_s[-len(y_td) :], at_s, allowed_ts, causal)

    feed = functools.partial(feed_forward, c, p.get("feed_forward"))

    def attend(y_td):  # with the feed-forward beside it: Chowdhery et al. 2022, section 2; Black et al. 2022
        own_td = norm(p, c, "feed_forward_norm", x_in_td) if c.parallel_norms else y_td
        return attend_alone(y_td) + (feed(own_td) if c.parallel_sublayers else 0)

    x_in_td = x_td
    x_td = sublayer(c, p, "attention", x_td, attend)
    if source_sd is not None:
        across = functools.partial(cross_attention, c, p["cross_attention"], source_sd)
        x_td = sublayer(c, p, "cross_attention", x_td, across)
    return x_td if c.parallel_sublayers else sublayer(c, p, "feed_forward", x_td, feed)


def windowed(c: Any, shape: tuple[int, int]) -> np.ndarray | bool:
    """The last `pattern_size` keys, every `pattern_extra`-th (Beltagy et al. 2020, section 3.1)."""
    if c.pattern == "full":
        return True
    assert c.pattern == "window"
    t, s = shape
    back_ts = (s - t + np.arange(t))[:, None] - np.arange(s)
    return (abs(back_ts) < c.pattern_size * c.pattern_extra) & (back_ts % c.pattern_extra == 0)


def sublayer(c: Any, p: Any, name: str, x_td, f: Callable) -> np.ndarray:
    """A residual branch, normalised by `norm_placement`."""
    if c.norm_placement == "post":
        return norm(p, c, f"{name}_norm", x_td + f(x_td))
    bare = c.norm_placement == "output" or (name == "attention" and not c.attention_norm)
    y_td = f(x_td if bare else norm(p, c, f"{name}_norm", x_td))
    behind = c.norm_placement in ("sandwich", "output")
    return x_td + (norm(p, c, f"{name}_output_norm", y_td) if behind else y_td)


def norm(params: Any, c: Any, name: str, x_td) -> np.ndarray:
    """LayerNorm, RMSNorm or none."""
    if c.norm == "none":
        return x_td
    return {"rms": rms_norm, "layer": layer_norm}[c.norm](params[name], x_td, c.norm_epsilon)


def last_norm(params: Any, c: Any, name: str, x_td) -> np.ndarray:
    """The norm after the last block, which post-norm models do not have."""
    return x_td if c.norm_placement == "post" else norm(params, c, name, x_td)


def cross_attention(c: Any, p: Any, source_sd, x_td) -> np.ndarray:
    """Attention to all of the source, without positions (Vaswani et al. 2017, section 3.2.3)."""
    t, s = len(x_td), len(source_sd)
    at_t, at_s, allowed_ts = np.zeros(t, int), np.arange(s), np.ones((t, s), bool)
    unplaced = types.SimpleNamespace(**vars(c) | {"position": "none"})
    return attention(unplaced, p, x_td, [(p, source_sd)], at_t, at_s, allowed_ts)


def feed_forward(c: Any, p: Any, x_td) -> np.ndarray:
    """down(act(up(x))), or gated down(act(gate(x)) up(x)) (Shazeer 2020)."""
    up = linear(p["up"], x_td)
    acts = {"relu": relu, "relu2": relu2, "gelu": gelu, "silu": silu, "swiglu": silu, "geglu": gelu}
    exact = {"gelu_exact": gelu_exact, "geglu_exact": gelu_exact, "swiglu_clamped": clamped}
    act = (acts | exact)[c.feed_forward]
    up = np.clip(up, -7, 7) + 1 if c.feed_forward == "swiglu_clamped" else up  # OpenAI 2025
    hidden = act(linear(p["gate"], x_td)) * up if "gate" in p else act(up)
    return linear(p["down"], hidden)


def relu(x):
    return np.maximum(x, 0)


def relu2(x):
    return np.maximum(x, 0) ** 2


def silu(x):
    return x / (1 + np.exp(-x))


def clamped(x):
    """x sigmoid(1.702 x) of min(x, 7)."""
    return silu(1.702 * np.minimum(x, 7)) / 1.702


def gelu_exact(x):
    """x Phi(x) (Hendrycks and Gimpel 2016, section 2)."""
    return x * special.ndtr(x)


def gelu(x):
    """In its approximation by tanh (Hendrycks and Gimpel 2016, section 2)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
