"""Instruments for decoders: logit lens, attribution to layers and heads, patching, kinds of heads."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.errors import UserError
from transformer.interpret.activations import apply, paths, record, unrolled
from transformer.interpret.interventions import Edit, Interventions
from transformer.models.decoder import Decoder

Array = jax.Array | np.ndarray

NORM_SCALES = {
    "rms": lambda params: params["scale"],
    "rms_offset": lambda params: 1 + params["offset"],
    "layer": lambda params: params["scale"],
}
"""Name of a norm -> by what it multiplies x / rms(x); of "layer", x without its mean."""


def lens(model: Decoder, params: Any, tokens_bt: Array) -> jax.Array:
    """Logits (n + 1, b, t, v) of the residual stream before the first block and after each of n, through the
    final norm and the unembedding.

    Source: nostalgebraist 2020, "Interpreting GPT: the logit lens".
    """
    x_nbtd = jnp.stack([*record(model, params, tokens_bt, "blocks/0/input", "blocks/*").values()])
    flat_btv = apply(model, params, x_nbtd.reshape(-1, *x_nbtd.shape[2:]), method="logits")
    return flat_btv.reshape(*x_nbtd.shape[:3], -1)


def attribution(
    model: Decoder, params: Any, tokens_bt: Array, answers_b: Array, others_b: Array
) -> dict[str, jax.Array]:
    """{part: (b,)}: what each part of the model adds to logit(answer) - logit(rival) behind the last token.

    The residual stream is a sum of the embedding and the outputs of sublayers, of which attention is the sum
    of its heads and its bias. With the scale 1 / rms(x) of the final norm frozen, the logits are linear in
    the residual stream, and so the parts add up to the difference. `bias` has the biases of the final norm
    and of the output; `rest` is what is missing to the model's own difference: rounding errors, or what a
    variant adds to the stream beside the sublayers. Heads are told apart with `norm_placement` "pre".

    Source: Elhage et al. 2021, "A mathematical framework for Transformer circuits"; Wang et al. 2023,
    section 3.1.

    Raises:
      UserError: the logits are not linear in the residual stream.
    """
    c = model.config
    if c.norm_placement == "post" or c.logit_soft_cap or c.norm not in (*NORM_SCALES, "none"):
        key, valid = ("logit_soft_cap", "0") if c.logit_soft_cap else ("norm", ", ".join(NORM_SCALES))
        key, valid = ("norm_placement", "pre") if c.norm_placement == "post" else (key, valid)
        raise UserError(f"attribution: model.{key}: {getattr(c, key)!r}; expected {valid}: logits of sums")
    suffix = "" if c.norm_placement == "pre" else "_output_norm"
    sublayers = [f"{name}{suffix}" for name in ("attention", "feed_forward")]
    sites = {f"blocks/{i}/{name}" for i in range(c.num_layers) for name in sublayers}
    sites |= {f"blocks/{i}/attention/output/input" for i in range(c.num_layers) if not suffix}
    known, last = paths(model, params, tokens_bt), f"blocks/{c.num_layers - 1}"
    chosen = [path for path in known if path in sites | {"blocks/0/input", last}]
    values = {path: x[:, -1] for path, x in record(model, params, tokens_bt, *chosen).items()}
    x_bd = values.pop(last)
    through, bias_d = _frozen(c, params, x_bd)

    def difference(y_bd: jax.Array) -> jax.Array:
        logits_bv = apply(model, params, y_bd[:, None], method="unembed")[:, 0]
        both_b2 = jnp.take_along_axis(logits_bv, jnp.stack([answers_b, others_b], axis=1), axis=1)
        return both_b2[:, 0] - both_b2[:, 1]

    y_bd = apply(model, params, x_bd[:, None], method="normalize")[:, 0]
    direction_bd = jax.grad(lambda y_bd: difference(y_bd).sum())(y_bd)
    layers = c.stack(causal=True).unstack(params["blocks"])
    parts = {"embedding": values.pop("blocks/0/input")}
    for path, part in values.items():
        if path.endswith("/input"):
            output = layers[int(path.split("/")[1])]["attention"]["output"]
            sublayer = path.removesuffix("/output/input")
            heads_bhd = jnp.einsum("bhk,hkd->bhd", part, output["kernel"])
            parts |= {f"{sublayer}/head_{h}": heads_bhd[:, h] for h in range(heads_bhd.shape[1])}
            if "bias" in output:
                parts[f"{sublayer}/bias"] = jnp.broadcast_to(output["bias"], x_bd.shape)
        elif f"{path}/output/input" not in values:
            parts[path] = part
    results = {name: jnp.sum(direction_bd * through(part), axis=-1) for name, part in parts.items()}
    results["bias"] = jnp.sum(direction_bd * bias_d, axis=-1) + difference(jnp.zeros_like(y_bd))
    results["rest"] = difference(y_bd) - sum(results.values())
    return results


def _frozen(c: Any, params: Any, x_bd: jax.Array) -> tuple[Any, Any]:
    """The final norm as a linear function of a part of x, with the scale of x; and its bias."""
    if c.norm == "none":
        return lambda part_bd: part_bd, 0.0

    def centred(part_bd: jax.Array) -> jax.Array:
        return part_bd - jnp.mean(part_bd, axis=-1, keepdims=True) if c.norm == "layer" else part_bd

    own = params["final_norm"]
    size_b1 = jnp.mean(jnp.square(centred(x_bd.astype(jnp.float32))), axis=-1, keepdims=True)
    factor_bd = jax.lax.rsqrt(size_b1 + c.norm_epsilon) * NORM_SCALES[c.norm](own)
    return lambda part_bd: centred(part_bd) * factor_bd, own.get("bias", 0.0)


def patching(
    model: Decoder,
    params: Any,
    clean_1t: Array,
    corrupted_1t: Array,
    answer: int,
    rival: int,
    site: str = "input",
) -> jax.Array:
    """(n, t): how much of the clean answer comes back if the corrupted run gets the clean value of one layer
    at one position,

        (d(patched) - d(corrupted)) / (d(clean) - d(corrupted)),   d = logit(answer) - logit(rival)

    behind the last token: 0 without effect, 1 as in the clean run. `site` is "input", the residual stream
    before the layer, "attention" or "feed_forward".

    Source: Meng et al. 2022, section 2; Wang et al. 2023, section 3.

    Raises:
      UserError: texts of different lengths, or the two runs do not differ.
    """
    check_same_length(clean_1t, corrupted_1t)
    values = record(model, params, clean_1t, f"blocks/*/{site}")
    clean, corrupted = (
        float(d_1[0])
        for d_1 in (_difference(apply(model, params, x), answer, rival) for x in (clean_1t, corrupted_1t))
    )
    if abs(clean - corrupted) < 1e-6:
        raise UserError(f"both texts give the logit difference {clean:.4f}: there is nothing to bring back")
    n, t = len(values), clean_1t.shape[1]
    places_m2 = jnp.stack(jnp.meshgrid(jnp.arange(n), jnp.arange(t), indexing="ij"), axis=-1).reshape(-1, 2)
    patched_m = _patched(params, corrupted_1t, values, places_m2, answer, rival, model=unrolled(model))
    return (patched_m.reshape(n, t) - corrupted) / (clean - corrupted)


def check_same_length(clean_1t: Any, corrupted_1t: Any) -> None:
    """Raises `UserError` if the positions of two texts do not correspond."""
    if clean_1t.shape != corrupted_1t.shape:
        lengths = f"{clean_1t.shape[1]} and {corrupted_1t.shape[1]} tokens"
        raise UserError(f"the texts have {lengths}; expected the same number, so that positions correspond")


@functools.partial(jax.jit, static_argnames="model")
def _patched(
    params: Any,
    tokens_1t: jax.Array,
    values: dict[str, jax.Array],
    places_m2: jax.Array,
    answer: int,
    rival: int,
    *,
    model: Any,
) -> jax.Array:
    numbers = {path: int(path.split("/")[1]) for path in values}
    rows = {number: row for row, number in enumerate(sorted(numbers.values()))}

    def one(place_2: jax.Array) -> jax.Array:
        def change(path: str, x_1td: jax.Array, positions_1t: jax.Array | None) -> jax.Array:
            here_1t = (place_2[0] == rows[numbers[path]]) & (positions_1t == place_2[1])
            return jnp.where(here_1t[..., None], values[path], x_1td)

        edits = (Edit(path, change) for path in values)
        with Interventions(*edits):  # all layers in one program, of which each call changes one
            return _difference(model.apply({"params": params}, tokens_1t), answer, rival)[0]

    return jax.lax.map(one, places_m2, batch_size=16)


def _difference(logits_btv: jax.Array, answer: int, rival: int) -> jax.Array:
    return logits_btv[:, -1, answer] - logits_btv[:, -1, rival]


def follows(tokens_bt: Array) -> jax.Array:
    """(b, t, s): whether token s follows an earlier occurrence of token t."""
    places, before_bs = jnp.arange(tokens_bt.shape[1]), jnp.roll(tokens_bt, 1, axis=1)
    return (tokens_bt[:, :, None] == before_bs[:, None]) & (places > 0) & (places <= places[:, None])


def head_scores(model: Decoder, params: Any, tokens_bt: Array) -> dict[str, dict[str, jax.Array]]:
    """{"induction" and "previous": {"blocks/0": (h,)}}: the mean attention of each head to tokens that follow
    earlier occurrences of the query's token, over queries with such, and to the token before the query's.

    Source: Olsson et al. 2022, the prefix-matching score, and the scores of previous-token heads.

    Raises:
      UserError: no token of the texts occurs twice, or the model has no attention weights.
    """
    follows_bts = follows(tokens_bt)
    count = float(jnp.sum(follows_bts.any(axis=-1)))
    if not count:
        raise UserError("induction: no token of the text occurs before; expected one that repeats itself")
    suffix = "/attention/weights"
    by_layer = {
        path.removesuffix(suffix): w
        for path, w in record(model, params, tokens_bt, f"blocks/*{suffix}").items()
    }
    return {
        "induction": {
            path: jnp.einsum("bhts,bts->h", w_bhts, follows_bts) / count for path, w_bhts in by_layer.items()
        },
        "previous": {
            path: jnp.diagonal(w_bhts, offset=-1, axis1=2, axis2=3).mean(axis=(0, 2))
            for path, w_bhts in by_layer.items()
        },
    }


def repeated_tokens(vocab_size: int, rows: int, period: int, seed: int = 0) -> np.ndarray:
    """(rows, 2 period) random tokens, each row twice: the text of Olsson et al. 2022 on which induction heads
    show."""
    once_bt = np.random.default_rng(seed).integers(0, vocab_size, (rows, period))
    return np.concatenate([once_bt, once_bt], axis=1)
