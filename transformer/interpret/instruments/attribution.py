"""Direct logit attribution: what layers and heads add to the logit of the next token."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.errors import UserError
from transformer.interpret.activations import apply, paths, record
from transformer.interpret.instruments.answers import answer_and_rival
from transformer.interpret.instruments.base import Subject, Table
from transformer.models.decoder import Decoder

Array = jax.Array | np.ndarray

NORM_SCALES = {
    "rms": lambda params: params["scale"],
    "rms_offset": lambda params: 1 + params["offset"],
    "layer": lambda params: params["scale"],
}
"""Name of a norm -> by what it multiplies x / rms(x); of "layer", x without its mean."""


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


def table(subject: Subject) -> Table:
    """The amounts of the parts, of attention those of its heads and their sum."""
    answer, rival = answer_and_rival(subject)
    pair = np.array([answer]), np.array([rival])
    parts = attribution(subject.model, subject.params, subject.prompt.tokens_1t, *pair)
    amounts = {name: float(amount_b[0]) for name, amount_b in parts.items()}
    split = [name.rpartition("/") if "attention/" in name else (name, "", "whole") for name in amounts]
    rows, columns = (list(dict.fromkeys(names)) for names in list(zip(*split, strict=True))[::2])
    values_rc = np.zeros((len(rows), len(columns)))
    for (row, _, column), amount in zip(split, amounts.values(), strict=True):
        values_rc[rows.index(row), columns.index(column)] = amount
    values_rc[:, columns.index("whole")] = values_rc.sum(axis=1)  # of attention, the sum of its heads
    ours, theirs = subject.names([answer, rival])
    title = f"what adds up to {sum(amounts.values()):.3f}, the logit of {ours!r} less that of {theirs!r}"
    return Table(title, values_rc, rows, columns)
