"""Where tokens look: the weights that attention used, of any kind, in decoders and encoders."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import find_experiment
from tests import runs
from tests.parameters import random_params
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from workdir import opening
from workdir.opening import read_config

pytestmark = pytest.mark.usefixtures("in_root")

TEXT = "for x in y"
SHARED = {"data.tokenizer": "bytes", "model.num_layers": "2", "model.num_heads": "2"}

DECODERS = {
    "rope, grouped": ("lm", {"model.num_kv_heads": "1", "model.scan_layers": "true"}),
    "window": ("lm", {"model.pattern": "window", "model.pattern_size": "3", "model.kernel": "blockwise"}),
    "latent, bf16": ("lm", {"model.mixer": "latent", "model.dtype": "bfloat16"}),
    "sinks": ("lm", {"model.sinks": "true", "model.position": "alibi"}),
    "memory": ("transformer_xl", {}),
}


@functools.cache
def experiment(name, keys):
    config = opening.check_config(read_config(f"configs/{name}.py:tiny"), [*(SHARED | dict(keys)).items()])
    return find_experiment(config.experiment)(config, tokenizer=Tokenizer.train("bytes"))


def opened(rng, name, keys):
    made = experiment(name, tuple(keys.items()))
    shapes = jax.eval_shape(lambda: made.init(jax.random.key(0)))
    boxed = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape, scale=0.5), p.dtype), shapes)
    return made, jax.tree.map(lambda p: getattr(p, "value", p), boxed, is_leaf=lambda p: hasattr(p, "value"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_looks_back_as_far_as_it_sees(rng, kind):
    """Weights of later tokens and of those beyond a window are 0; rows sum to 1, or with a sink to less."""
    made, params = opened(rng, *DECODERS[kind])
    weights_hts, by, seen = made.attention(params, TEXT, layer=0)
    n = len(TEXT) + 1
    assert weights_hts.shape == (2, n, n) and by == seen == ["start", *TEXT]
    t, s = np.indices((n, n))
    reach = 3 if kind == "window" else n
    allowed = (s <= t) & (s > t - reach)
    assert (weights_hts[:, ~allowed] == 0).all() and (weights_hts[:, allowed] > 0).all()
    sums = weights_hts.sum(-1)
    if kind == "sinks":
        assert (sums < 1).all() and (sums > 0).all()
    else:
        np.testing.assert_allclose(sums, 1, atol=1e-5)
    other = made.attention(params, TEXT)[0]
    np.testing.assert_array_equal(other, made.attention(params, TEXT, layer=1)[0])
    assert np.abs(other - weights_hts).max() > 1e-3
    # The text's beginning is seen as it is alone.
    np.testing.assert_allclose(made.attention(params, TEXT[:4], layer=1)[0], other[:, :5, :5], atol=2e-3)


def test_weights_are_those_of_the_definition(rng):
    """softmax(q k / sqrt(width)) over the text so far, from the parameters, in NumPy."""
    keys = {"model.position": "none", "model.norm": "rms", "model.use_bias": "false"}
    made, params = opened(rng, "lm", keys)
    weights_hts, _, _ = made.attention(params, TEXT, layer=0)
    block = jax.tree.map(lambda p: np.asarray(p[0], np.float64), params["blocks"])
    tokens = [made.data.tokenizer.bos_id, *TEXT.encode()]
    table = np.asarray(params["embedding"]["table"], np.float64)
    x_td = table[tokens] * (32**0.5 if made.config.model.scale_embeddings else 1)
    x_td = x_td / np.sqrt((x_td**2).mean(-1, keepdims=True) + made.config.model.norm_epsilon)
    x_td *= block["attention_norm"]["scale"]
    q_htk, k_htk = (
        np.einsum("td,dhk->htk", x_td, block["attention"][name]["kernel"]) for name in ("query", "key")
    )
    scores_hts = np.where(np.tri(len(tokens)) > 0, q_htk @ k_htk.swapaxes(1, 2) / 4, -np.inf)
    expected = np.exp(scores_hts - scores_hts.max(-1, keepdims=True))
    np.testing.assert_allclose(weights_hts, expected / expected.sum(-1, keepdims=True), atol=1e-4)


def test_an_encoder_looks_both_ways_and_at_no_padding(rng):
    made, params = opened(rng, "bert", {"data.next_sentence": "false"})
    weights_hts, by, seen = made.attention(params, "one [MASK] two")
    assert by == seen and by[0] == "[CLS]" and by[-1] == "[SEP]" and "[MASK]" in by
    assert weights_hts.shape == (2, len(by), len(by)) and (weights_hts > 0).all()
    np.testing.assert_allclose(weights_hts.sum(-1), 1, atol=1e-5)


def test_a_written_target_looks_at_its_source_and_at_itself(rng):
    made, params = opened(rng, "summarization_decoder", {})
    weights_hts, written, seen = made.attention(params, "abc")
    assert seen[:5] == ["start", *"abc", "end"] and written[-1] == "end" and seen[5:] == written[:-1]
    assert weights_hts.shape == (2, len(written), len(seen))
    np.testing.assert_allclose(weights_hts.sum(-1), 1, atol=1e-5)
    t, s = np.indices(weights_hts.shape[1:])
    assert (weights_hts[:, s > t + 4] == 0).all() and (weights_hts[:, s <= t + 4] > 0).all()


def test_a_layer_that_is_not_there_is_refused(rng):
    made, params = opened(rng, *DECODERS["sinks"])
    with pytest.raises(UserError, match="layer: 2; the model has 2"):
        made.attention(params, TEXT, layer=2)


def test_a_run_draws_pictures_of_it(tmp_path):
    source = runs.write_corpus(tmp_path / "corpus")
    made, _ = opened(np.random.default_rng(0), "lm", {"data.source": source})
    hook = made.hooks(RunFolder(tmp_path / "run"))[-1]
    params = random_params(np.random.default_rng(0), made.model, jnp.zeros((1, 1), jnp.int32))
    weights_hts, by, seen = hook.values(params)
    assert weights_hts.shape == (2, 16, 16) and len(by) == len(seen) == 16
    hook(3, type("S", (), {"eval_params": params}), {})
    assert (tmp_path / "run" / "attention" / "00000003.png").is_file()
