"""muP: what each layer computes, and what a step changes of it, does not depend on the width."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.training.optim.test_optimizer import CONFIG
from transformer.config import from_values, refuse_idle, to_values
from transformer.errors import UserError
from transformer.layers.mixers import MIXERS
from transformer.models.classifier import ClassifierConfig, TextClassifier
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.encoder import HeadConfig
from transformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from transformer.models.masked_lm import MaskedLanguageModel
from transformer.models.transformer_xl import TransformerXLConfig
from transformer.models.transforms.mup import logit_scale, score_scale, widened
from transformer.models.vision import VisionConfig, VisionTransformer
from transformer.training.optim.optimizer import OptimizerConfig, make_optimizer
from transformer.training.optim.parametrization import KINDS, Parametrization, scales, split_axes
from transformer.training.optim.roles import roles_of
from transformer.training.parallel import is_boxed, unboxed
from workdir.opening import open_without_data, read_config

BASE = 16
SIZES = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 8, "head_dim": 8, "max_length": 32}
MUP = {"parametrization": "mup", "base_width": BASE}
TOKENS = jnp.zeros((1, 4), jnp.int32)
RATE = 0.01


def config_of(model, **optimizer):
    given = CONFIG | {"name": "adamw", "learning_rate": RATE, "schedule": "constant", "warmup_steps": 0}
    return SimpleNamespace(model=model, initialize_std=0.0, optimizer=OptimizerConfig(**given | optimizer))


def of(model, init, **optimizer):
    return Parametrization(init, config_of(model, **optimizer))


def decoder(optimizer=None, **keys):
    model = DecoderConfig(**SIZES | MUP | keys)
    return of(model, lambda rng: model.build(50).init(rng, TOKENS)["params"], **optimizer or {})


def named(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_boxed)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


# Activations and gradients of muP, by the size of their entries: hidden units are Theta(1) and the gradients
# with respect to them Theta(1 / width); inputs and outputs of a fixed size and their gradients are Theta(1).
# (Yang et al. 2022, section J.2.1.)
LAYERS = {
    "hidden": ("kernel", ("embed", "mlp"), True, True),
    "heads": ("kernel", ("layers", "embed", "heads", "head_dim"), True, True),
    "output_of_heads": ("kernel", ("heads", "head_dim", "embed"), True, True),
    "unembedding": ("kernel", ("embed", "vocab"), True, False),
    "router": ("kernel", ("layers", "embed", None), True, False),
    "multi_query": ("kernel", ("embed", "kv_heads", "head_dim"), True, False),
    "patches": ("kernel", ("patch", "embed"), False, True),
    "lora_up": ("kernel", (None, "heads", "head_dim"), False, True),
    "expert": ("kernel", ("layers", "expert", "embed", "mlp"), True, True),
    "bias": ("bias", ("mlp",), False, True),
    "table": ("table", ("vocab", "embed"), False, True),
}
FIXED = {"vocab": 12, "patch": 12, None: 12, "layers": 1, "expert": 1, "head_dim": 8, "kv_heads": 1}


@pytest.mark.parametrize("kind", ["adam", "sgd", "muon"])
@pytest.mark.parametrize("layer", LAYERS)
def test_initial_outputs_and_the_changes_of_a_step_do_not_depend_on_the_width(rng, layer, kind):
    leaf, names, wide_in, wide_out = LAYERS[layer]
    if kind == "muon" and leaf != "kernel":
        pytest.skip("Muon leaves these to Adam")
    widths = [64, 256, 1024]
    initial, change, backwards = [], [], []
    for width in widths:
        model = DecoderConfig(
            d_model=width, d_ff=2 * width, num_heads=width // 8, head_dim=8, num_kv_heads=1, **MUP
        )
        grown = {"embed": width, "mlp": 2 * width, "heads": width // 8}
        shape = tuple(FIXED.get(name) or grown[name] for name in names)
        box = nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, jnp.float32), names)
        found = scales((jax.tree_util.DictKey(leaf),), box, model, kind)
        if leaf == "kernel":
            axes = split_axes(names, shape)
            inputs, outputs = (math.prod(n for _, n in each) for each in axes)
        else:
            inputs, outputs = 1, width
        x = rng.choice([-1.0, 1.0], inputs)
        delta = rng.choice([-1.0, 1.0], outputs) / (outputs if wide_out else 1)
        kernel = rng.normal(size=(inputs, outputs)) * found.initial / math.sqrt(inputs)
        gradient = np.outer(x, delta)
        if kind == "adam":
            step = np.sign(gradient)
        elif kind == "sgd":
            step = gradient
        else:  # an orthogonal matrix of rank one, times the factor of optax by shape
            step = gradient / (np.linalg.norm(x) * np.linalg.norm(delta))
            step *= math.sqrt(max(1, outputs / inputs))
        initial.append(np.abs(x @ kernel).mean())
        change.append(np.abs(x @ (step * found.step)).mean())
        # Hidden units that changed as the gradient through the initial kernel asks them to.
        moved = np.sign(kernel @ np.sign(delta))
        backwards.append(np.abs(moved @ kernel).mean())
    assert abs(slope(widths, change)) < 1e-6
    assert slope(widths, initial) < 0.3
    if wide_in:
        assert slope(widths, backwards) < 0.3
    if wide_out:
        assert slope(widths, initial) > -0.3


def slope(widths, sizes):
    return np.polyfit(np.log(widths), np.log(sizes), 1)[0]


MODELS = {
    "decoder": lambda: (DecoderConfig, {}, Decoder),
    "untied": lambda: (DecoderConfig, {"tie_embeddings": False, "use_bias": True}, Decoder),
    "wider_heads": lambda: (DecoderConfig, {"head_dim": 0, "base_head_dim": 2, "qk_norm": True}, Decoder),
    "grouped": lambda: (DecoderConfig, {"num_kv_heads": 4}, Decoder),
    "multi_query": lambda: (DecoderConfig, {"num_kv_heads": 1}, Decoder),
    "latent": lambda: (DecoderConfig, {"mixer": "latent"}, Decoder),
    "latent_dim": lambda: (DecoderConfig, {"mixer": "latent", "latent_dim": 32}, Decoder),
    "linear": lambda: (DecoderConfig, {"mixer": "linear"}, Decoder),
    "gated_linear": lambda: (DecoderConfig, {"mixer": "gated_linear"}, Decoder),
    "mamba2": lambda: (DecoderConfig, {"mixer": "mamba2", "use_bias": True}, Decoder),
    "gated_delta": lambda: (
        DecoderConfig,
        {"mixer": "gated_delta", "num_heads": 16, "head_dim": 4, "num_key_heads": 8},
        Decoder,
    ),
    "kimi_delta": lambda: (
        DecoderConfig,
        {"mixer": "kimi_delta", "head_dim": 0, "base_head_dim": 2, "value_dim": 16},
        Decoder,
    ),
    "rwkv7": lambda: (DecoderConfig, {"mixer": "rwkv7"}, Decoder),
    "experts": lambda: (DecoderConfig, {"num_experts": 4, "feed_forward": "swiglu"}, Decoder),
    "sinks": lambda: (DecoderConfig, {"sinks": True, "position": "t5"}, Decoder),
    "shaw": lambda: (DecoderConfig, {"position": "shaw"}, Decoder),
    "learned": lambda: (DecoderConfig, {"position": "learned"}, Decoder),
    "lora": lambda: (DecoderConfig, {"lora_rank": 2, "lora_layers": "(query|output|down)$"}, Decoder),
    "kinds": lambda: (
        DecoderConfig,
        {"layers": ("a", "b"), "layer_kinds": {"a": {"feed_forward": "swiglu"}, "b": {"mixer": "linear"}}},
        Decoder,
    ),
    "transformer_xl": lambda: (TransformerXLConfig, {}, lambda c, v: c.build(v)),
    "encoder_decoder": lambda: (EncoderDecoderConfig, {}, EncoderDecoder),
    "masked_lm": lambda: (HeadConfig, {"embedding_norm": True}, MaskedLanguageModel),
    "classifier": lambda: (ClassifierConfig, {"pooling": "cls"}, lambda c, v: TextClassifier(c, v, 3)),
    "vision": lambda: (VisionConfig, {"pooling": "cls"}, lambda c, v: VisionTransformer(c, 3)),
}


def shapes(name, config, build):
    model = build(config, 50)
    inputs = {
        "encoder_decoder": (TOKENS, TOKENS),
        "masked_lm": (TOKENS, TOKENS),
        "classifier": (TOKENS, TOKENS + 1, 1),
        "vision": (jnp.zeros((1, 4, 4, 1), jnp.uint8),),
    }
    given = inputs.get(name, (TOKENS,))
    return lambda rng: model.init(rng, *given)["params"]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_is_scaled_by_how_much_its_own_axes_have_grown(name):
    cls, keys, build = MODELS[name]()
    config = cls(**SIZES | MUP | keys)
    base = cls(**{**to_values(config), **widened(to_values(config), BASE), "layers": config.layers})
    init = shapes(name, config, build)
    wide = named(jax.eval_shape(init, jax.random.key(0)))
    narrow = named(jax.eval_shape(shapes(name, base, build), jax.random.key(0)))
    found = named(of(config, init).scales)
    assert wide.keys() == narrow.keys() == found.keys()
    for path, box in wide.items():
        ratios = np.array(box.value.shape) / np.array(narrow[path].value.shape)
        inputs, outputs = 1.0, float(np.prod(ratios))
        if path.endswith("kernel"):
            last = 2 if box.names[-1] == "head_dim" and "heads" in str(box.names[-2]) else 1
            inputs, outputs = float(np.prod(ratios[:-last])), float(np.prod(ratios[-last:]))
        expected = min(1.0, math.sqrt(outputs / inputs)) if path.endswith("kernel") else 1.0
        assert found[path].initial == pytest.approx(expected), path
        assert found[path].step == pytest.approx(1 / inputs), path


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "contrib.muon"])
def test_at_the_base_width_nothing_is_scaled(optimizer):
    for keys in (SIZES, SIZES | {"head_dim": 0, "base_head_dim": 8}, SIZES | {"base_layers": 2}):
        if optimizer == "sgd" and "base_layers" in keys:
            continue
        model = DecoderConfig(**keys | {"parametrization": "mup", "base_width": 64})
        mup = of(model, lambda rng, model=model: model.build(50).init(rng, TOKENS)["params"], name=optimizer)
        assert all((each.initial, each.step) == (1, 1) for each in named(mup.scales).values())
        assert score_scale(model) == logit_scale(model) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["adamw", "contrib.muon"])
def test_at_the_base_width_training_is_equal_to_the_last_bit(in_root, optimizer):
    def trained(*keys):
        given = [("optimizer.name", optimizer), ("model.head_dim", "16"), *keys]
        run = open_without_data(read_config("configs/lm.py:tiny"), given)
        with run.placed():
            state = jax.jit(lambda: unboxed(run.create()))()
            batch = run.put(next(iter(run.loader.iterate(0))))
            for _ in range(2):
                state, _ = jax.jit(run.make_step())(state, batch)
        return state.params

    base = trained(("model.parametrization", "mup"), ("model.base_width", "32"))
    jax.tree.map(np.testing.assert_array_equal, base, trained())


@pytest.mark.thorough
def test_the_first_step_of_each_parameter_has_its_own_rate(rng):
    mup = decoder({"weight_decay": 0.0}, tie_embeddings=False)
    params, found = step_of(mup, rng)
    rates = {path: float(jnp.abs(each).max() / RATE) for path, each in found.items()}
    for path, rate in rates.items():
        wide_in = path.endswith("kernel")
        assert rate == pytest.approx(BASE / 64 if wide_in else 1.0, rel=1e-3), path
    assert params.keys() == found.keys()


def step_of(mup, rng, gradient=1.0):
    params = unboxed(mup.initial(jax.random.key(0)))
    roles = roles_of(lambda: jax.eval_shape(mup.init, jax.random.key(0)))
    optimizer = mup.scaled(make_optimizer(mup.config.optimizer, 10, roles=roles)[0])
    gradients = jax.tree.map(
        lambda p: jnp.asarray(gradient * rng.choice([-1.0, 1.0], p.shape), p.dtype), params
    )
    updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(params), params)
    return named(params), named(updates)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["adamw", "adam", "lion", "contrib.muon"])
def test_weight_decay_does_not_shrink_in_wide_models(rng, name):
    mup = decoder({"name": name, "weight_decay": 0.1})
    params, found = step_of(mup, rng, gradient=0.0)
    kernel = "blocks/feed_forward/up/kernel"
    np.testing.assert_allclose(found[kernel], -RATE * 0.1 * params[kernel], rtol=1e-5)
    assert not np.any(found["embedding/table"])


def test_factors_of_rules_are_multiplied_with_those_of_the_width(rng):
    rules = [{"match": "feed_forward/up", "learning_rate": 3.0}, {"match": "key", "frozen": True}]
    rules.append({"match": "table", "optimizer": "lion", "learning_rate": 0.5})
    plain = decoder({"weight_decay": 0.0})
    config = config_of(plain.config.model)
    config.optimizer = from_values(OptimizerConfig, to_values(plain.config.optimizer) | {"rules": rules})
    _, found = step_of(Parametrization(plain.init, config), rng)
    sizes = {path: float(jnp.abs(each).max() / RATE) for path, each in found.items()}
    assert sizes["blocks/feed_forward/up/kernel"] == pytest.approx(3 * BASE / 64, rel=1e-3)
    assert sizes["blocks/feed_forward/down/kernel"] == pytest.approx(BASE / 64, rel=1e-3)
    assert sizes["blocks/attention/key/kernel"] == 0
    assert sizes["embedding/table"] == pytest.approx(0.5, rel=1e-3)


def test_muon_scales_what_it_leaves_to_adam_and_kernels_that_grow_on_one_side():
    keys = {"lora_rank": 2, "lora_layers": "/up$", "tie_embeddings": False, "num_experts": 4}
    found = named(decoder({"name": "contrib.muon"}, **keys).scales)
    ratio = BASE / 64
    assert found["unembedding/kernel"].step == ratio  # Adam's
    assert found["blocks/attention/query/kernel"].step == 1
    assert found["blocks/feed_forward/router/kernel"].step == pytest.approx(ratio**0.5)
    rms = {"name": "contrib.muon", "arguments": {"consistent_rms": 0.2}}
    assert named(decoder(rms).scales)["blocks/attention/query/kernel"].step == pytest.approx(ratio**0.5)


@pytest.mark.parametrize(
    ("power", "last", "inner", "initial"), [(1.0, 1 / 4, 1.0, 1 / 2), (0.5, 1 / 4, 0.5, 1)]
)
def test_blocks_of_a_deep_model_add_less(power, last, inner, initial):
    keys = {"num_layers": 8, "base_layers": 2, "depth_exponent": power, "use_bias": True, "base_width": 64}
    found = named(decoder(**keys).scales)
    for path, each in found.items():
        expected = (1.0, 1.0)
        if path.startswith("blocks/"):
            ends = path.endswith(("output/kernel", "output/bias", "down/kernel", "down/bias"))
            expected = (initial, last) if ends else (1.0, inner)
        assert (each.initial, each.step) == pytest.approx(expected), path


def test_scores_are_divided_by_the_width_of_a_head_and_tied_logits_by_that_of_the_model(rng):
    wide = DecoderConfig(**SIZES | MUP | {"head_dim": 0, "base_head_dim": 2})
    assert score_scale(wide) == pytest.approx((wide.key_width / 2) ** -0.5)
    (block,) = wide.stack(causal=True).blocks
    assert block.mixer.scale * block.mixer.score_scale == pytest.approx(2**0.5 / wide.key_width)
    for mixer in ("multi_head", "linear", "latent"):
        assert "score_scale" in MIXERS[mixer].__dataclass_fields__
    standard = DecoderConfig(**SIZES)
    params = unboxed(standard.build(50).init(jax.random.key(0), TOKENS)["params"])
    tokens = jnp.asarray(rng.integers(0, 50, (1, 4)))
    for keys, factor in (({}, BASE / 64), ({"scale_embeddings": True}, (BASE / 64) ** 0.5)):
        plain = DecoderConfig(**SIZES | keys).build(50).apply({"params": params}, tokens)[..., :50]
        found = DecoderConfig(**SIZES | MUP | keys).build(50).apply({"params": params}, tokens)[..., :50]
        np.testing.assert_allclose(found, plain * factor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("optimizer", "step"), [("adamw", (BASE / 64) ** 0.5), ("sgd", 1.0)])
def test_tables_that_are_multiplied_by_the_root_of_the_width_have_smaller_steps(optimizer, step):
    # sqrt(d) steps of Adam, and d of gradient descent, which should be 1 and d of the embeddings.
    found = named(decoder({"name": optimizer}, scale_embeddings=True).scales)
    assert found["embedding/table"].step == pytest.approx(step)
    assert found["embedding/table"].initial == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"parametrization": "standard"}, "base_width: 16 does nothing with parametrization 'standard'"),
        ({"base_width": 0}, "base_width: 0 with parametrization 'mup'; expected the d_model"),
        ({"head_dim": 0}, "base_head_dim: 0 with parametrization 'mup' and head_dim 0; set head_dim"),
        ({"num_heads": 6}, "num_heads: 6 with d_model 64 are 1.5 at base_width 16; expected a whole"),
        ({"mixer": "plain"}, "mixer: 'plain' with parametrization 'mup': its head is as wide"),
        ({"head_dim": 0, "base_head_dim": 2, "position": "shaw"}, "position: 'shaw' with base_head_dim 2"),
        ({"base_layers": 2, "norm_placement": "post"}, "base_layers: 2 with norm_placement 'post'"),
        ({"depth_exponent": 2.0}, "depth_exponent: 2.0; expected a power in [0.5, 1]"),
        ({"parametrization": "ntk"}, None),
    ],
)
def test_keys_that_are_not_defined_together_are_named(keys, said):
    with pytest.raises(UserError) as raised:
        refuse_idle(from_values(DecoderConfig, SIZES | MUP | keys))
    assert said is None or str(raised.value).startswith(f"config.{said}")


@pytest.mark.parametrize(
    ("optimizer", "keys", "said"),
    [
        ({"name": "lamb"}, {}, "config.optimizer.name: 'lamb' with model.parametrization 'mup', which knows"),
        ({"name": "adafactor"}, {}, "config.optimizer.name: 'adafactor'"),
        ({"name": "sgd"}, {"base_layers": 2}, "config.model.base_layers: 2 with sgd"),
        (
            {"name": "contrib.muon", "arguments": {"adaptive": True}},
            {},
            "config.optimizer.arguments.adaptive",
        ),
    ],
)
def test_optimizers_whose_steps_are_not_known_are_refused(optimizer, keys, said):
    with pytest.raises(UserError) as raised:
        decoder(optimizer, **keys)
    assert str(raised.value).startswith(said)
    assert KINDS["adamw"] == "adam"


def test_initial_values_from_one_distribution_are_refused():
    config = config_of(DecoderConfig(**SIZES | MUP))
    config.initialize_std = 0.02
    with pytest.raises(UserError, match=r"^config.initialize_std: 0.02 with model.parametrization 'mup'"):
        Parametrization(lambda rng: None, config)
