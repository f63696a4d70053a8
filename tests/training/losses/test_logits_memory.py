"""Logits of parts of the vocabulary or chunks of tokens, in memory one after another."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import launch
from configs import lm
from experiments.language_modeling import LanguageModelingConfig
from tests import runs
from transformer.config import flatten, from_values, to_values
from transformer.errors import UserError
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.planning.collectives import collective
from transformer.planning.hlo import Program
from transformer.training import parallel
from transformer.training.losses.logits_memory import chunked
from transformer.training.losses.token_losses import LossConfig, loss_of_states, token_loss
from workdir.compatibility.differences import differences

KINDS = {
    "tied": {"tie_embeddings": True},
    "untied, limited": {"tie_embeddings": False, "logit_soft_cap": 2.0},
    "tied, limited, with a bias": {"tie_embeddings": True, "output_bias": True, "logit_soft_cap": 3.0},
    "scaled, with a bias": {"tie_embeddings": False, "output_bias": True, "scale_logits": True},
}
VALUES = [("cross_entropy", 0.0), ("cross_entropy", 0.3), ("focal", 0.0)]


def assert_close(actual, expected, tolerance=1e-5):
    compare = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    jax.tree.map(compare, actual, expected)


def on_devices(loss, x, matrix, names, **axes):
    """loss(x, matrix) and its gradients on a mesh that divides rows, and the matrix by its logical axes; and
    the compiled program."""
    mesh = parallel.make_mesh(parallel.MeshConfig(**{"data": 1} | axes))
    by_rows = parallel.batch_sharding(mesh)
    with parallel.placed(mesh, parallel.RULES["default"]):
        over = jax.NamedSharding(mesh, nn.logical_to_mesh_axes(names))
        inputs = jax.device_put(x, by_rows), jax.device_put(matrix, over)
        placed = (jax.NamedSharding(mesh, jax.P()), (by_rows, over))
        program = jax.jit(jax.value_and_grad(loss, (0, 1)), out_shardings=placed).lower(*inputs).compile()
        return program(*inputs), program.as_text()


def decoder(rng, vocab_size, multiple, **keys):
    """A model's head with random parameters: f(params, x, part), and params."""
    sizes = {"d_model": 8, "num_layers": 1, "num_heads": 1, "d_ff": 8, "vocab_multiple": multiple}
    model = Decoder(DecoderConfig(**sizes | keys), vocab_size)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"])
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), shapes)
    return functools.partial(model.apply, method="unembed"), {"params": params}


def measured(head, params, x, targets, vocab_size, weights, smoothing=0.0, **config):
    """The weighted sum of the three results of each token, these results, and the gradients."""
    values = LossConfig(**config)

    def loss(params, x):
        unembed = functools.partial(head, params)
        found = loss_of_states(unembed, x, targets, values, vocab_size, values.loss, smoothing)
        return sum(jnp.sum(w * each) for w, each in zip(weights, found, strict=True)), found

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, x)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "smoothing"), VALUES)
def test_parts_change_neither_values_nor_gradients(rng, kind, name, smoothing):
    """With padding in the last parts, alone and in chunks of tokens too."""
    head, params = decoder(rng, 21, 8, **KINDS[kind])
    x, targets = (
        jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32),
        jnp.asarray(rng.integers(0, 21, (2, 5))),
    )
    inputs = head, params, x, targets, 21, jnp.asarray(rng.random((3, 2, 5)), jnp.float32), smoothing
    whole = measured(*inputs, name=name)
    for keys in ({"vocab_parts": 3}, {"vocab_parts": 8}, {"vocab_parts": 2, "chunk_size": 2}):
        found = measured(*inputs, name=name, **keys)
        assert_close(found, whole, 2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(("vocab_size", "parts"), [(3, 4), (8, 2), (1, 16), (16, 16)])
def test_parts_of_padding_alone_have_no_weight(rng, vocab_size, parts):
    """Also where a part has as many tokens as the vocabulary."""
    head, params = decoder(rng, vocab_size, 16)
    x, targets = (
        jnp.asarray(rng.normal(size=(1, 4, 8)), jnp.float32),
        jnp.asarray(rng.integers(0, vocab_size, (1, 4))),
    )
    inputs = head, params, x, targets, vocab_size, jnp.ones((3, 1, 4)), 0.1
    whole, found = measured(*inputs), measured(*inputs, vocab_parts=parts)
    assert_close(found, whole, 2e-5)
    assert all(np.isfinite(each).all() for each in jax.tree.leaves(found))


def test_in_half_precision_gradients_of_states_are_summed_in_float32(rng):
    """Of many parts as exactly as of one: of bfloat16 the sum would lose some of them."""
    head, params = decoder(rng, 512, 128, dtype="bfloat16")
    x, targets = (
        jnp.asarray(rng.normal(size=(2, 6, 8)), jnp.bfloat16),
        jnp.asarray(rng.integers(0, 512, (2, 6))),
    )
    rest = targets, 512, jnp.asarray(rng.random((3, 2, 6)), jnp.float32)
    (whole, _), (_, dx) = measured(head, params, x, *rest)
    (sum_of_parts, _), (_, dx_in_parts) = measured(head, params, x, *rest, vocab_parts=128)
    _, (_, exact) = measured(head, params, x.astype(jnp.float32), *rest)
    errors = [np.linalg.norm(np.asarray(each, np.float64) - np.asarray(exact)) for each in (dx_in_parts, dx)]
    assert dx_in_parts.dtype == jnp.bfloat16 and errors[0] < 1.2 * errors[1]
    np.testing.assert_allclose(sum_of_parts, whole, rtol=1e-4)


def test_parts_never_hold_all_logits(rng):
    head, params = decoder(rng, 1024, 128)
    x, targets = jnp.ones((2, 64, 8)), jnp.zeros((2, 64), jnp.int32)

    def peak(parts):
        def loss(params):
            unembed = functools.partial(head, params)
            return loss_of_states(unembed, x, targets, LossConfig(vocab_parts=parts), 1024)[0].sum()

        return jax.jit(jax.grad(loss)).lower(params).compile().memory_analysis().temp_size_in_bytes

    assert peak(8) < 0.3 * peak(1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "axes", [{"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 8}, {"fsdp": 4, "context": 2}]
)
def test_no_device_has_the_whole_projection_or_its_gradient(rng, axes):
    """It is gathered and its gradients are reduced part by part, and together as much as the whole; values
    and gradients are those of one device."""
    head, params = decoder(rng, 250, 256)
    x, targets = (
        jnp.asarray(rng.normal(size=(8, 6, 8)), jnp.float32),
        jnp.asarray(rng.integers(0, 250, (8, 6))),
    )
    weights = jnp.asarray(rng.random((8, 6)), jnp.float32)
    table = params["params"]["embedding"]["table"]

    def loss(x, table, parts=4, chunk_size=0):
        unembed = functools.partial(head, {"params": {"embedding": {"table": table}}})
        config = LossConfig(vocab_parts=parts, chunk_size=chunk_size)
        nll, _, log_z = loss_of_states(unembed, x, targets, config, 250)
        return jnp.sum(weights * (nll + 0.1 * log_z**2))

    expected = jax.value_and_grad(functools.partial(loss, parts=1), (0, 1))(x, table)
    actual, text = on_devices(loss, x, table, ("vocab", "embed"), **axes)
    in_chunks, _ = on_devices(functools.partial(loss, chunk_size=1), x, table, ("vocab", "embed"), **axes)
    for found in (actual, in_chunks):
        assert_close(found, expected)
    read = Program.read(text)
    found = [collective(read, each, 8) for body in read.computations.values() for each in body]
    moved = [
        each for each in found if each and each.operation in ("all-gather", "all-reduce", "reduce-scatter")
    ]
    assert {"all-gather"} <= {each.operation for each in moved}
    assert max(each.size for each in moved) <= table.nbytes // 4 // axes.get("tensor", 1)


CONFIGS = ("lm", "bert", "translation", "rnn_translation", "transformer_xl", "dpo", "summarization_decoder")


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("config", CONFIGS)
def test_models_train_in_parts_as_before(tmp_path, config):
    """Every model whose loss is over a vocabulary, on two devices, with microbatches."""
    losses = {}
    for parts in (1, 4):
        workdir = tmp_path / f"in {parts}"
        flags = [
            f"--config=configs/{config}.py:tiny",
            f"--workdir={workdir}",
            f"--config.loss.vocab_parts={parts}",
        ]
        flags += ["--config.parallel.microbatches=2", "--config.train.log_every=1", "--config.seed=3"]
        assert launch.main(flags) == 0
        lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        losses[parts] = [line[name] for line in lines for name in ("train/loss", "eval/loss") if name in line]
    assert len(losses[1]) > 1
    np.testing.assert_allclose(losses[4], losses[1], rtol=1e-4)


@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize(("parts", "more", "said"), [
    (7, [], "config.loss.vocab_parts: 7 does not divide the 384 tokens (the vocabulary with its padding); "
     "expected a divisor such as 6, or another model.vocab_multiple"),
    (384, ["--config.parallel.mesh.tensor=2"], "384 does not divide the 192 tokens of each of 2 devices (the "
     "vocabulary with its padding); expected a divisor such as 192,"),
    (0, [], "loss.vocab_parts: 0; expected at least 1"),
])  # fmt: skip
def test_parts_that_are_not_equal_are_refused_before_there_is_a_folder(tmp_path, capsys, parts, more, said):
    source = runs.write_corpus(tmp_path / "corpus")
    code = launch.main(runs.tiny(source, tmp_path / "run", f"--config.loss.vocab_parts={parts}", *more))
    assert code == 2 and re.search(re.escape(said), capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", [0, 1, 3, 4, 10, 99])
def test_chunks_change_neither_values_nor_gradients(rng, chunk):
    """Also where the last chunk is not full, and where one chunk holds everything."""
    x = jnp.asarray(rng.normal(size=(2, 10, 4)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(4, 7)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 7, (2, 10)))
    weights = jnp.asarray(rng.random((2, 10)), jnp.float32)

    def loss(x, kernel, chunk):
        nll, _, log_z = chunked(lambda x, y: token_loss(x @ kernel, y, 7), x, targets, chunk)
        return jnp.sum(weights * (nll + 0.1 * log_z**2))

    expected = jax.value_and_grad(loss, (0, 1))(x, kernel, 0)
    actual = jax.value_and_grad(loss, (0, 1))(x, kernel, chunk)
    assert_close(actual, expected)


def test_chunks_never_hold_all_logits():
    x, kernel, targets = jnp.ones((2, 64, 4)), jnp.ones((4, 1000)), jnp.zeros((2, 64), jnp.int32)

    def peak(chunk):
        def loss(kernel):
            return chunked(lambda x, y: token_loss(x @ kernel, y, 1000), x, targets, chunk)[0].sum()

        return jax.jit(jax.grad(loss)).lower(kernel).compile().memory_analysis().temp_size_in_bytes

    assert peak(8) < 0.5 * peak(0)


@pytest.mark.parametrize("chunk", [3, 8])
def test_devices_gather_what_chunks_use_once_and_add_up_gradients_on_their_own(rng, chunk):
    """Their loops over chunks have no collectives, no gradient is added up whole over all devices, and values
    and gradients are those of one device."""
    x = jnp.asarray(rng.normal(size=(8, 20, 4)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(4, 7)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 7, (8, 20)))
    weights = jnp.asarray(rng.random((8, 20)), jnp.float32)

    def loss(x, kernel):
        nll, _, log_z = chunked(lambda x, y: token_loss(x @ kernel, y, 7), x, targets, chunk)
        return jnp.sum(weights * (nll + 0.1 * log_z**2))

    expected = jax.value_and_grad(loss, (0, 1))(x, kernel)
    actual, text = on_devices(loss, x, kernel, ("embed", "vocab"), data=2, fsdp=2, context=2)
    assert_close(actual, expected)
    loops = re.findall(r"body=%?([\w.-]+)", text)
    bodies = [re.search(rf"^%?{re.escape(name)} .*?^}}", text, re.M | re.S).group() for name in loops]
    assert len(bodies) == 2 and not [body for body in bodies if re.search("all-gather|all-reduce", body)]
    read = Program.read(text)
    found = [collective(read, each, 8) for each in read.computations[read.entry]]
    sums = {(each.ways, each.size) for each in found if each and each.operation == "all-reduce"}
    # Over `data` only what a device keeps of the kernel's gradient.
    assert "all-gather" in text and (2, kernel.nbytes // 4) in sums and all(ways < 8 for ways, _ in sums)


def test_smoothing_of_another_loss_needs_all_logits():
    LossConfig(name="focal", vocab_parts=2)
    with pytest.raises(
        UserError, match=r"^vocab_parts: 2 with name='focal' and label_smoothing=0.1, .* expected 1$"
    ):
        LossConfig(name="focal", vocab_parts=2, label_smoothing=0.1)
    LossConfig(vocab_parts=2, label_smoothing=0.1)


def test_a_run_may_go_on_with_other_parts():
    there = lm.get_config("tiny").to_dict()
    here = there | {"loss": there["loss"] | {"vocab_parts": 4}}
    config = from_values(LanguageModelingConfig, here | {"experiment": "language_modeling"})
    before, now = flatten(there), flatten(to_values(config))
    assert before != now and differences(config, now, before, data_known=True) == ""


@pytest.mark.parametrize("tied", [False, True])
def test_the_gradient_of_a_part_is_not_added_to_an_array_of_the_whole(rng, tied):
    """Parts of the projection are inputs of the scan. Of a closure, the backward pass would carry the whole
    gradient from part to part, and read and write it for each."""
    head, params = decoder(rng, 1024, 128, tie_embeddings=tied)
    x, targets = jnp.ones((2, 3, 8)), jnp.zeros((2, 3), jnp.int32)

    def loss(params, x):
        unembed = functools.partial(head, params)
        return loss_of_states(unembed, x, targets, LossConfig(vocab_parts=8), 1024)[0].sum()

    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(params, x)
    scans = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"]
    carried = [
        aval.size for eqn in scans for aval in eqn.params["jaxpr"].out_avals[: eqn.params["num_carry"]]
    ]
    assert len(scans) == 2 and max(carried) == x.size
