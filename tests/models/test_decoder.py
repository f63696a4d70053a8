import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from tests.parameters import random_params
from transformer.config import refuse_idle
from transformer.errors import UserError
from transformer.layers.attention.positions import POSITIONS
from transformer.layers.normalization import NORMS
from transformer.models.decoder import Decoder, DecoderConfig

CONFIG = DecoderConfig(d_model=16, num_layers=3, num_heads=2, d_ff=32, use_bias=True)
VOCAB = 19


def make(rng, **changes):
    model = Decoder(dataclasses.replace(CONFIG, **changes), VOCAB)
    scale = 0.5 if model.config.norm != "none" else 0.2  # without norms larger ones would grow in each layer
    return model, random_params(rng, model, jnp.zeros((1, 1), jnp.int32), scale=scale)


def tokens(rng, b=2, t=8):
    return jnp.asarray(rng.integers(0, VOCAB, (b, t)))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("position", POSITIONS)
def test_future_tokens_carry_zero_gradient(rng, position, placement):
    model, params = make(rng, position=position, norm_placement=placement, tie_embeddings=False)
    chosen, at = rng.permutation(VOCAB)[:16].reshape(2, 8), 4  # no token stands in two places
    weights_bv = rng.normal(size=(2, VOCAB))

    @jax.grad
    def gradient(table, params):
        params = params | {"embedding": {"table": table}}
        return (weights_bv * model.apply({"params": params}, chosen)[:, at, :VOCAB]).sum()

    size = np.abs(jax.jit(gradient)(params["embedding"]["table"], params)).max(-1)[chosen].max(0)
    assert (size[: at + 1] > 0).all()
    np.testing.assert_array_equal(size[at + 1 :], 0)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("changes", [
    {"skips": True, "value_embeddings": (0, -1), "sinks": True, "output_bias": True, "norm": "layer"},
    {"skips": True, "layers": ("a", "b"), "layer_kinds": {"a": {"mixer": "linear"}, "b": {}}},
    {"mixer": "latent", "num_experts": 3, "tie_embeddings": False},
    {"position": "t5", "mixer": "plain"},
    {"position": "transformer_xl", "qk_norm": True, "num_kv_heads": 1},
])  # fmt: skip
def test_parameters_are_float32_where_jax_has_64_bits(changes):
    config = dataclasses.replace(CONFIG, **changes)
    with jax.enable_x64(True):
        made = jax.eval_shape(config.build(VOCAB).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(made)} == {"float32"}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("position", POSITIONS)
def test_packed_documents_equal_separate_ones(rng, position):
    model, params = make(rng, position=position)
    lengths = [4, 1, 4, 1]
    documents = [rng.integers(0, VOCAB, n) for n in lengths]
    padding = 3
    row = jnp.asarray(np.concatenate([*documents, np.zeros(padding, int)]))[None]
    segments = jnp.asarray(np.repeat([1, 2, 3, 4, 0], [*lengths, padding]))[None]
    positions = jnp.asarray(np.concatenate([np.arange(n) for n in [*lengths, padding]]))[None]
    apply = jax.jit(model.apply)
    packed = apply({"params": params}, row, segments_bt=segments, positions_bt=positions)[0]
    start = 0
    for document in documents:
        alone = apply({"params": params}, jnp.asarray(document)[None])[0]
        np.testing.assert_allclose(packed[start : start + len(document)], alone, atol=1e-5)
        start += len(document)
    assert np.isfinite(packed).all()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("changes", [
    {"mixer": "linear", "position": "none"},
    {"position": "learned"},
    {"pattern": "global", "pattern_size": 2},
])  # fmt: skip
def test_positions_that_are_not_given_count_in_each_document(rng, changes):
    model, params = make(rng, **changes)
    row, segments = tokens(rng), jnp.array([[1, 1, 1, 2, 2, 2, 2, 2]] * 2)
    packed = model.apply({"params": params}, row, segments_bt=segments)
    alone = model.apply({"params": params}, row[:, 3:])
    np.testing.assert_allclose(packed[:, 3:], alone, atol=1e-5)


@pytest.mark.thorough
def test_scanned_unrolled_and_rematerialised_are_one_function(rng):
    """Values and gradients, dropout included, agree; the traced program really has, or has not, the loop
    and the rematerialisation."""
    model, params = make(rng, dropout=0.3, attention_dropout=0.2)
    chosen = tokens(rng)

    def traced(**changes):
        other = Decoder(dataclasses.replace(model.config, **changes), VOCAB)

        def loss(params):
            logits = other.apply({"params": params}, chosen, train=True, rngs={"dropout": jax.random.key(1)})
            return jnp.sum(jnp.sin(logits[..., :VOCAB]))

        return jax.jit(jax.value_and_grad(loss)).trace(params)

    expected, gradients = traced().lower().compile()(params)
    for scan, remat in itertools.product((False, True), ("none", "full", "dots")):
        program = traced(scan_layers=scan, remat=remat)
        if scan or remat != "none":
            value, other_gradients = program.lower().compile()(params)
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), other_gradients, gradients)
        assert ("scan[" in str(program.jaxpr)) == scan
        # Norms and activations are computed again always; whole blocks, products in them, when asked for.
        recomputed = [
            str(each.params["jaxpr"])
            for each in equations(program.jaxpr.jaxpr)
            if "remat" in each.primitive.name
        ]
        assert any("dot_general" in body for body in recomputed) == (remat != "none")


def equations(jaxpr):
    """Those of a program and of all programs in it."""
    for each in jaxpr.eqns:
        yield each
        for value in jax.tree.leaves(list(each.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


@pytest.mark.thorough
def test_rematerialisation_keeps_less(rng):
    """The arrays that the backward pass holds on to, counted."""
    chosen = tokens(rng, 2, 16)

    def held(remat):
        model, params = make(np.random.default_rng(0), remat=remat)
        _, backward = jax.vjp(lambda p: model.apply({"params": p}, chosen).sum(), params)
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    assert held("full") < held("dots") < held("none")


def test_tied_embeddings_are_one_array(rng):
    _, tied = make(rng)
    _, untied = make(rng, tie_embeddings=False)
    assert "unembedding" not in tied and untied["unembedding"]["kernel"].shape == (16, 128)
    assert (
        sum(p.size for p in jax.tree.leaves(untied)) - sum(p.size for p in jax.tree.leaves(tied)) == 16 * 128
    )


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("tie", [False, True])
def test_the_vocabulary_s_padding_has_no_probability(rng, tie):
    model, params = make(rng, tie_embeddings=tie)
    probabilities = jax.nn.softmax(model.apply({"params": params}, tokens(rng)), axis=-1)
    np.testing.assert_array_equal(probabilities[..., VOCAB:], 0)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("norm", NORMS)
def test_half_precision_stays_near_full(rng, norm):
    model, params = make(rng, norm=norm)
    half = Decoder(dataclasses.replace(model.config, dtype="bfloat16"), VOCAB)
    chosen = tokens(rng)
    full_logits, half_logits = (m.apply({"params": params}, chosen)[..., :VOCAB] for m in (model, half))
    assert half_logits.dtype == jnp.float32
    np.testing.assert_allclose(half_logits, full_logits, atol=0.15)
    assert half.apply({"params": params}, chosen, method="hidden").dtype == jnp.bfloat16


def test_parameter_names_are_an_interface(rng):
    _, params = make(
        rng,
        feed_forward="swiglu",
        norm="layer",
        norm_placement="sandwich",
        tie_embeddings=False,
        position="learned",
    )
    paths = {"/".join(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    kernels = [f"attention/{name}" for name in ("query", "key", "value", "output")]
    kernels += [f"feed_forward/{name}" for name in ("up", "gate", "down")]
    norms = ["attention_norm", "attention_output_norm", "feed_forward_norm", "feed_forward_output_norm"]
    expected = {f"blocks/{name}/{leaf}" for name in kernels for leaf in ("kernel", "bias")}
    expected |= {f"blocks/{name}/{leaf}" for name in norms for leaf in ("scale", "bias")}
    expected |= {
        "embedding/table",
        "position/table",
        "final_norm/scale",
        "final_norm/bias",
        "unembedding/kernel",
    }
    assert paths == expected


BARE = {"norm": "none", "feed_forward": "none"}


@pytest.mark.parametrize("changes", [
    {},
    {"scan_layers": True, "remat": "full", "num_kv_heads": 1, "position": "learned"},
])  # fmt: skip
def test_attention_only_without_norms_is_a_sum_over_layers(rng, changes):
    """x + sum_n MultiHead_n(x_n) and nothing else (Elhage et al. 2021), in the form of `basics`."""
    model, params = make(rng, tie_embeddings=False, use_bias=False, **BARE, **{"position": "none"} | changes)
    assert {*params} - {"position"} == {"embedding", "blocks", "unembedding"}
    assert {*params["blocks"]} == {"attention"}
    chosen = tokens(rng)
    exact = jax.tree.map(np.float64, params)
    x_btd = exact["embedding"]["table"][chosen]
    x_btd = x_btd + (exact["position"]["table"][: chosen.shape[1]] if "position" in exact else 0)
    for i in range(3):
        layer = {name: value["kernel"][i] for name, value in exact["blocks"]["attention"].items()}
        q, k, v = (np.einsum("btd,dhk->bhtk", x_btd, layer[name]) for name in ("query", "key", "value"))
        weights = np.exp(np.where(np.tri(8, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(8), -np.inf))
        out = weights / weights.sum(-1, keepdims=True) @ v
        x_btd = x_btd + np.einsum("bhtk,hkd->btd", out, layer["output"])
    logits = x_btd @ exact["unembedding"]["kernel"]
    found = model.apply({"params": params}, chosen)
    np.testing.assert_allclose(found[..., :VOCAB], logits[..., :VOCAB], atol=2e-5)


@pytest.mark.thorough
def test_sublayers_share_the_scale_of_their_sum(rng):
    """The output projections of n blocks of m sublayers have 1 / (n m) of the variance of the others."""
    for feed_forward, terms in ("gelu", 6), ("none", 3):
        model = Decoder(dataclasses.replace(CONFIG, d_model=64, feed_forward=feed_forward), VOCAB)
        params = nn.meta.unbox(jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])
        attention = params["blocks"]["attention"]
        ratio = attention["query"]["kernel"].var() / attention["output"]["kernel"].var()
        np.testing.assert_allclose(ratio, terms, rtol=0.2)


def test_layers_without_parameters_are_refused(rng):
    with pytest.raises(UserError, match=r"config\.model: a kind of layers has no parameters: none of norm"):
        make(rng, mixer="plain", **BARE)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("d_ff", 64, "with feed_forward 'none'"),
        ("norm_placement", "post", "with norm 'none'"),
        ("norm_epsilon", 1e-3, "with norm 'none'"),
    ],
)
def test_keys_without_effect_are_refused(key, value, why):
    config = DecoderConfig(**BARE, **{key: value})
    with pytest.raises(UserError, match=f"config.{key}: {value!r} does nothing {why}"):
        refuse_idle(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 15}, r"d_model: 15 is not divisible by num_heads 2"),
        ({"num_heads": 4, "num_kv_heads": 3}, r"num_kv_heads: 3 does not divide num_heads 4"),
        ({"dropout": 1.0}, r"dropout: 1\.0"),
        ({"position": "roep"}, r"position: 'roep'; expected one of 'none'"),
        ({"head_dim": 7}, r"head_dim: 7 is odd"),
        ({"num_layers": 0}, r"num_layers: 0; expected from 1 to 10,000"),
        ({"kernel": "fast"}, r"kernel: 'fast'; expected one of 'auto', 'ring', "),
    ],
)
def test_impossible_shapes_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", ["reference", "unrolled"])
def test_a_hessian_times_a_vector_in_every_mode(rng, kernel):
    """As docs/notebooks.md has it: reverse over reverse, forward over reverse, and differences."""
    model, params = make(rng, kernel=kernel)
    inputs = tokens(rng)
    vector = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)

    def loss(params):
        return -jax.nn.log_softmax(model.apply({"params": params}, inputs))[..., 0].mean()

    def product(params):
        return optax.tree.vdot(jax.grad(loss)(params), vector)

    def beside(step):
        return jax.tree.map(lambda p, v: p + step * v, params, vector)

    step = 1e-3
    found, gradient = jax.jit(jax.grad(product))(params), jax.jit(jax.grad(loss))
    ahead, behind = gradient(beside(step)), gradient(beside(-step))
    largest = max(np.abs(x).max() for x in jax.tree.leaves(found))
    for exact, a, b in zip(*map(jax.tree.leaves, (found, ahead, behind)), strict=True):
        np.testing.assert_allclose(exact, (a - b) / (2 * step), atol=0.02 * largest)
    forward = jax.jit(lambda params: jax.jvp(jax.grad(loss), (params,), (vector,))[1])(params)
    for exact, x in zip(*map(jax.tree.leaves, (found, forward)), strict=True):
        np.testing.assert_allclose(x, exact, atol=1e-4 * largest)
    _, slope = jax.jvp(loss, (params,), (vector,))
    np.testing.assert_allclose(slope, product(params), rtol=1e-4, atol=1e-6)


def test_forward_mode_is_refused_in_bfloat16(rng):
    """Its products have their own backward passes."""
    model, params = make(rng, dtype="bfloat16")
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda params: model.apply({"params": params}, tokens(rng)), (params,), (params,))
