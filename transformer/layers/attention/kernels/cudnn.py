"""Fused attention of cuDNN, for NVIDIA GPUs."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer.devices import compute_capability, platform, sharded_over
from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.attention.kernels.scores import Scoring, saved
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Window
from transformer.layers.attention.whole_heads import repeated

HOPPER = 9
"""The compute capability of the GPUs for which the backward pass, too, takes heads up to 256 wide (the
support matrix of cuDNN 9.18); JAX checks that of the devices at hand."""

MAX_BIAS_ENTRIES = 2**28
"""The most entries of a materialised bias of the scores (1/2 GiB)."""

SHORT = 2**22
"""The most pairs of a query and a key in a row up to which such a bias is as fast as columns of queries and
keys: in rows of 1,024 tokens it is, in rows of 4,096 or 16,384 columns are faster by an eighth (H200,
docs/benchmarks.md)."""

APART = 2.0**11
"""By how much at least the scores of masked keys fall by `_with_segments`."""


def cudnn(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
) -> jax.Array:
    """The same as `reference`, by `jax.nn.dot_product_attention`, for inputs that `serves` accepts.

    Causal masks and windows take no memory, and masked blocks are skipped. Segments, invalid keys and
    position biases become a bias array of the queries' type, quadratic in the length, with the precision of
    that type. In long rows, segments and invalid keys become columns of queries and keys instead (see
    `_with_segments`), if the heads are narrow enough for them. Values narrower than the keys are padded with
    zeros, as JAX asks for both of one width.
    Source: Dao et al. 2022 (FlashAttention), as NVIDIA built it into cuDNN.
    """
    scoring, k_bsgk, v_bsgk = scoring or Scoring(), repeated(k_bsgk), repeated(v_bsgk)
    (t, h, k), s = q_bthk.shape[1:], k_bsgk.shape[1]
    q_bhtk, bias_bhts, allowed_bhts = q_bthk.swapaxes(1, 2), None, None
    if scoring.has("bias"):
        bias_bhts = scoring.finish(jnp.zeros((1, h, t, s)), q_bhtk).astype(q_bthk.dtype)
    if mask.key_segments_bs is not None or mask.key_valid_bs is not None:
        allowed_bhts = mask.dense(t, s)
    q_bthk, scale = scoring.queries(q_bhtk).swapaxes(1, 2), scoring.scale or k**-0.5
    seen_bhts = None if mask.own_keys and mask.key_valid_bs is None else allowed_bhts
    if _in_columns(q_bthk, k_bsgk, mask, scoring):
        q_bthk, k_bsgk = _with_segments(q_bthk, k_bsgk, mask, scale)
        allowed_bhts = None
    window = None if mask.pattern is None else (mask.pattern.size - 1, 0)  # type: ignore[attr-defined]
    out_bthk = jax.nn.dot_product_attention(
        q_bthk,
        k_bsgk,
        jnp.pad(v_bsgk, ((0, 0), (0, 0), (0, 0), (0, k_bsgk.shape[-1] - v_bsgk.shape[-1]))),
        bias_bhts,
        allowed_bhts,
        scale=scale,
        is_causal=mask.causal,
        local_window_size=window,
        implementation="cudnn",
    )
    if seen_bhts is not None:
        # Keys masked only by lower scores would share the weight of a query without allowed keys.
        out_bthk = jnp.where(jnp.any(seen_bhts, axis=-1).swapaxes(1, 2)[..., None], out_bthk, 0)
    return saved(out_bthk[..., : v_bsgk.shape[-1]])


def serves(q_bthk, k_bsgk, v_bsgk, mask: Mask, scoring: Scoring, dropout_rate: float) -> str:
    """Why `cudnn` does not support these inputs; "" if it does."""
    (_, t, _, k), s = q_bthk.shape, k_bsgk.shape[1]
    entries = _entries(q_bthk, k_bsgk, mask, scoring)
    if many := _in_columns(q_bthk, k_bsgk, mask, scoring):
        k += _added_width(t, s)
    if platform() != "nvidia":
        return f"it is for NVIDIA's GPUs, and this is {platform()}"
    if q_bthk.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it computes in bfloat16 or float16, not in {q_bthk.dtype}"
    if k % 8 or k > _widest() or v_bsgk.shape[-1] > k:
        widths = f"heads are {k} wide{' with segments' * many}, and values {v_bsgk.shape[-1]}"
        return f"{widths}; it takes multiples of 8 up to {_widest()}, and values at most as wide"
    if mask.pattern is not None and not (
        isinstance(mask.pattern, Window) and mask.pattern.dilation == 1 and mask.causal
    ):
        return f"of patterns it knows the causal window, not {mask.pattern}"
    if mask.start or (mask.causal and t != s):
        return "the queries do not stand where the keys do"
    if entries and not many and (t % 2 or s % 2):
        return f"lengths {t} and {s} must be even with a bias, segments or invalid keys"
    if entries > MAX_BIAS_ENTRIES and scoring.has("bias"):
        most = f"at most {MAX_BIAS_ENTRIES / 2**29:.1f}"
        return f"the biases would take {entries / 2**29:.1f} GiB in each layer; {most}"
    if scoring.sinks_h is not None:
        return "it has no sinks"
    if scoring.soft_cap:
        return "it has no soft cap"
    if scoring.has("values"):
        return "it keeps no weights for the position to add values with"
    return "it has no dropout of weights" if dropout_rate else ""


def _widest() -> int:
    """The widest heads that cuDNN takes on these GPUs."""
    return 256 if int(compute_capability()) == HOPPER else 128


def _in_columns(q_bthk: jax.Array, k_bsgk: jax.Array, mask: Mask, scoring: Scoring) -> bool:
    """Whether segments and invalid keys are told by columns, and not by an array."""
    (_, t, _, k), s, entries = q_bthk.shape, k_bsgk.shape[1], _entries(q_bthk, k_bsgk, mask, scoring)
    faster = t * s > SHORT and k + _added_width(t, s) <= _widest()
    return not scoring.has("bias") and (entries > MAX_BIAS_ENTRIES or (entries > 0 and faster))


def _entries(q_bthk: jax.Array, k_bsgk: jax.Array, mask: Mask, scoring: Scoring) -> int:
    """The entries of the bias array on each device; 0: none is needed."""
    b, t, h, _ = q_bthk.shape
    here = b // sharded_over("batch")[1] * t * k_bsgk.shape[1]
    marked = mask.key_segments_bs is not None or mask.key_valid_bs is not None
    return h * here if scoring.has("bias") else here if marked else 0


def _bits(t: int, s: int) -> np.ndarray:
    """The places of the bits of a segment's number, 0, 1, ..., below a power of two above both lengths."""
    return np.arange(max(t, s).bit_length())


def _added_width(t: int, s: int) -> int:
    """The number of columns of `_with_segments`, a multiple of 16."""
    needed = len(_bits(t, s)) + 1
    return needed + -needed % 16


def _with_segments(
    q_bthk: jax.Array, k_bsgk: jax.Array, mask: Mask, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Queries and keys with columns whose products are 0 for allowed keys, and so negative for keys of other
    segments and invalid keys that their weights are 0.

    The m bits of a segment's number are written as signs: the product of two numbers is m if they are equal,
    otherwise at most m - 2. One more column takes m away, or 3 m for an invalid key. All columns are exact in
    bfloat16. They come first, and fill tensor cores' steps of 16 columns, so that they cancel in float32
    before any other product is added; in another order scores would be rounded by up to 2^-8.
    """
    t, s = q_bthk.shape[1], k_bsgk.shape[1]
    bits, unit = _bits(t, s), 2.0 ** np.ceil(np.log2(APART / (2 * scale)))

    def signs(segments_bt: jax.Array | None) -> jax.Array:
        numbers_bt = jnp.zeros((1, 1), int) if segments_bt is None else segments_bt
        return 2.0 * (numbers_bt[..., None] >> bits & 1) - 1

    def beside(x_bthk: jax.Array, *columns_btc: jax.Array) -> jax.Array:
        parts = [jnp.broadcast_to(x_btc, (*x_bthk.shape[:2], x_btc.shape[-1])) for x_btc in columns_btc]
        some_btc = jnp.concatenate(parts, axis=-1).astype(x_bthk.dtype)
        some_btc = jnp.pad(some_btc, ((0, 0), (0, 0), (0, _added_width(t, s) - some_btc.shape[-1])))
        each_bthc = jnp.repeat(some_btc[:, :, None], x_bthk.shape[2], axis=2)
        return jnp.concatenate([each_bthc, x_bthk], axis=-1)

    valid_bs = jnp.ones((1, 1), bool) if mask.key_valid_bs is None else mask.key_valid_bs
    less_bs1 = jnp.where(valid_bs, -1.0, -3.0)[..., None] * len(bits)
    query_bthk = beside(q_bthk, unit * signs(mask.query_segments_bt), jnp.full((1, 1, 1), unit))
    return query_bthk, beside(k_bsgk, signs(mask.key_segments_bs), less_bs1)


CUDNN = Kernel(cudnn, serves)
