"""Decoding with weights and caches of few bits, for every decoder."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.attention.cache import KVCache
from transformer.layers.quantized import Quantized, is_quantized
from transformer.models.decoder import DecoderConfig, DecoderStepper
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.recurrent import RecurrentConfig, RecurrentStepper
from transformer.models.transforms import reduced as module
from transformer.models.transforms.reduced import WEIGHTS, check_cache, reduced

CONFIG = DecoderConfig(d_model=16, num_layers=2, num_heads=4, d_ff=24, use_bias=True, max_length=32)
VOCAB = 23
KINDS = {
    "ring": {"tie_embeddings": False, "feed_forward": "swiglu", "value_embeddings": (0,),
             "pattern": "window", "pattern_size": 3, "num_kv_heads": 2, "layers": ("local", "full"),
             "layer_kinds": {"local": {}, "full": {"pattern": "full", "num_kv_heads": 1}}},
    "latent": {"mixer": "latent", "num_experts": 3, "num_layers": 1, "lora_rank": 2},
    "linear": {"mixer": "linear", "position": "none", "skips": True},
    "pair": {"position": "t5", "num_layers": 1},
    "recurrent": {"tie_embeddings": False},
    "summary": {"attention": "none", "cell": "lstm", "bidirectional": False},
}  # fmt: skip
RECURRENT = RecurrentConfig(d_model=16, num_layers=2)
STAYS = r"bias|scale|added|skip|score|lora_(down|up)/kernel|router/kernel|position/|(key|value)_up/kernel"
"""What is never reduced: no product of weights, of few numbers, or multiplied over either of its axes."""


def make(rng, kind):
    pair = EncoderDecoderConfig(
        **{each.name: getattr(CONFIG, each.name) for each in dataclasses.fields(CONFIG)}
    )
    config = {"pair": pair, "recurrent": RECURRENT, "summary": RECURRENT}.get(kind, CONFIG)
    model, one = dataclasses.replace(config, **KINDS[kind]).build(VOCAB), jnp.zeros((1, 1), jnp.int32)
    return model, random_params(rng, model, *([one] * (1 + (config is not CONFIG))), scale=0.3)


def stepper_of(model, params, cache="auto"):
    alone = type(model.config) is DecoderConfig
    return DecoderStepper.of(model, params, cache) if alone else model.stepper(params, 1, cache)


def inputs(rng, n=6):
    """Ragged prompts of three rows, and n more tokens for two copies of each."""
    tokens, new_nb = rng.integers(2, VOCAB, (3, 7)), rng.integers(2, VOCAB, (n, 6))
    return tokens.astype(np.int32), np.array([7, 3, 5], np.int32), new_nb.astype(np.int32)


def stepped(stepper, tokens, lengths, new_nb, rows=(1, 0, 2, 2, 5, 4)):
    """The logits after prompts and after each new token: of beams that change places in the middle, and
    forget what they read last where no state hinders it."""
    forgets = not isinstance(stepper, RecurrentStepper) and not (
        hasattr(stepper, "layers") and isinstance(stepper.stack.mixers[0].empty_cache(1, 1), jax.Array)
    )

    @jax.jit
    def run(stepper):
        def step(cache, new_b):
            logits_bv, cache = stepper.step(new_b, cache)
            return cache, logits_bv

        logits, cache = stepper.prefill(tokens, lengths, len(new_nb), **({"rewound": 1} if forgets else {}))
        middle = len(new_nb) // 2
        cache, before = jax.lax.scan(step, stepper.repeat(cache, 2), new_nb[:middle])
        cache = stepper.reorder(stepper.rewind(cache, 1) if forgets else cache, np.array(rows))
        _, after = jax.lax.scan(step, cache, new_nb[middle:])
        return jnp.concatenate([logits, *before, *after])

    return np.asarray(run(stepper))


def divergence(logits, others):
    """KL(p, q) of each row, in nats."""
    p, q = (np.asarray(jax.nn.log_softmax(np.float32(x), axis=-1), np.float64) for x in (logits, others))
    return (np.exp(p) * (p - q)).sum(-1)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_reads_what_is_stored(rng, kind, monkeypatch):
    """int8 weights and an int8 cache give the logits of the rounded parameters, keys and values in float32:
    in prompts, steps and beams."""
    model, params = make(rng, kind)
    small = reduced(params, "int8")
    rounded = jax.tree.map(lambda x: x.astype("float32"), small, is_leaf=is_quantized)
    got = stepped(stepper_of(model, small, "int8"), *(given := inputs(rng)))
    write, round_trip = KVCache.write, lambda cache: KVCache.of(*cache.quantized().read("float32"))
    monkeypatch.setattr(KVCache, "write", lambda self, new, start: write(self, round_trip(new), start))
    if kind == "pair":
        block = type(model.config.decoder_stack.block(0))
        keys_values = block.keys_values
        monkeypatch.setattr(block, "keys_values", lambda self, x: round_trip(keys_values(self, x)))
    # Where a key lies between two steps, another order of sums may round it to the other one.
    difference = np.abs(got - stepped(stepper_of(model, rounded), *given))
    assert difference.max() < 0.03 and np.median(difference) < 1e-4


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", KINDS)
def test_which_parameters_are_reduced(rng, kind):
    """All of products, so that x . W = (x . values) scale; a second time nothing changes."""
    _, params = make(rng, kind)
    small = reduced(params, "int8")
    named, _ = jax.tree_util.tree_flatten_with_path(small, is_leaf=is_quantized)
    for path, leaf in named:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert is_quantized(leaf) != bool(re.search(STAYS, name)), name
        assert not is_quantized(leaf) or leaf.values.dtype == jnp.int8
    again = jax.tree.leaves(reduced(small, "int8"))
    assert all(a is b for a, b in zip(again, jax.tree.leaves(small), strict=True))


@pytest.mark.thorough
def test_the_model_stays_near(rng):
    """With parameters of the size that training gives them, of sure and of unsure predictions."""
    config = dataclasses.replace(CONFIG, d_model=64, d_ff=256, num_kv_heads=2)
    model = config.build(64)
    params = random_params(rng, model, jnp.zeros((1, 1), jnp.int32), scale=0.125)
    norms = {"attention_norm": 1.0, "feed_forward_norm": 1.0, "final_norm": 3.0}
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.full_like(x, norms[path[-2].key]) if path[-1].key == "scale" else x, params
    )
    given = inputs(rng, 16)
    full = stepped(stepper_of(model, params), *given)
    surest = np.asarray(jax.nn.softmax(full, axis=-1)).max(-1)
    assert surest.min() < 0.2 and surest.max() > 0.6
    for weights, cache, most in (
        ("int8", "int8", 0.002),
        ("float8", "auto", 0.03),
        ("bfloat16", "auto", 1e-4),
    ):
        other = stepped(stepper_of(model, reduced(params, weights), cache), *given)
        assert 0 < divergence(full, other).mean() < most, weights
        assert (full.argmax(-1) == other.argmax(-1)).mean() > 0.9


@pytest.mark.thorough
def test_weights_in_bfloat16_are_those_of_a_computation_in_bfloat16(rng):
    model = dataclasses.replace(CONFIG, dtype="bfloat16", num_layers=1).build(VOCAB)
    params = random_params(rng, model, jnp.zeros((1, 1), jnp.int32))
    small = reduced(params, "bfloat16")
    given = inputs(rng, 2)
    np.testing.assert_array_equal(*(stepped(stepper_of(model, each), *given) for each in (params, small)))
    assert small["embedding"]["table"].dtype == jnp.bfloat16
    assert small["final_norm"]["scale"].dtype == jnp.float32


def test_a_half_or_a_quarter_of_the_bytes(rng):
    """Of all that a stepper holds; the parameters of training, which are held elsewhere, stay."""
    model = dataclasses.replace(CONFIG, d_model=128, d_ff=512, use_bias=False).build(256)
    params = random_params(rng, model, jnp.zeros((1, 1), jnp.int32))
    sizes = {
        kind: sum(leaf.nbytes for leaf in jax.tree.leaves(stepper_of(model, reduced(params, kind))))
        for kind in WEIGHTS
    }
    assert sizes["bfloat16"] < 0.51 * sizes["float32"]
    assert sizes["int8"] == sizes["float8"] < 0.27 * sizes["float32"]
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


def test_no_float32_copy_is_made_for_a_loop_over_tokens(rng):
    """XLA would convert whole matrices before the loop; what it needs besides is less than one of them."""
    model = dataclasses.replace(CONFIG, d_model=256, d_ff=1024, num_layers=1).build(4096)
    params = reduced(random_params(rng, model, jnp.zeros((1, 1), jnp.int32)), "int8")

    def loop(stepper, cache):
        step = lambda carry, _: (stepper.step(jnp.argmax(carry[0], -1), carry[1]), None)  # noqa: E731
        return jax.lax.scan(step, (jnp.zeros((1, 4096)), cache), None, length=8)[0][0]

    stepper = stepper_of(model, params)
    shapes = jax.eval_shape(lambda: stepper.prefill(np.zeros((1, 4), np.int32), np.array([4]), 8))[1]
    found = jax.jit(loop).lower(stepper, shapes).compile().memory_analysis()
    assert found.temp_size_in_bytes < 4 * 4096 * 256
    assert found.argument_size_in_bytes < 1.3 * (4096 * 256 + 12 * 256**2)


def test_what_nobody_else_holds_is_freed_on_the_way(monkeypatch):
    there, held, reduce = {id(each) for each in jax.live_arrays()}, [], module._reduce

    def noting(*given):
        found = [each for each in jax.live_arrays() if id(each) not in there and each.dtype == jnp.float32]
        held.append(sum(each.shape == (512, 512) for each in found))
        return reduce(*given)

    monkeypatch.setattr(module, "_reduce", noting)
    small = reduced({f"{i}": {"unembedding": {"kernel": jnp.ones((512, 512))}} for i in range(3)}, "int8")
    assert held == [3, 2, 1]
    assert isinstance(small["0"]["unembedding"]["kernel"], Quantized)


def test_a_type_for_keys_that_are_not_cached_is_refused():
    check_cache("sample.cache", "auto", False)
    check_cache("sample.cache", "int8", True)
    with pytest.raises(UserError, match=r"^sample.cache: 'int8'; expected 'auto': this model caches states"):
        check_cache("sample.cache", "int8", False)
