"""That with data parallelism devices accumulate gradients on their own, with the random numbers of one."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import find_experiment
from tests import runs
from transformer.training import parallel
from transformer.training.extras import replicas
from transformer.training.run import Run
from workdir.opening import check_config, read_config

KEY = jax.random.key(np.random.randint(1 << 30))


def drawn(key, shape):
    """Numbers of all types that JAX draws, by keys as layers derive them."""
    keys = jax.random.split(jax.random.fold_in(key, 3), (2, 2))
    bits = [jax.random.bits(key, shape, width) for width in ("uint8", "uint16", "uint32")]
    return *bits, jax.random.bernoulli(keys[1, 0], 0.3, shape), jax.random.normal(keys[0, 1], shape)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(8,), (8, 3), (8, 3, 5, 2)])
def test_blocks_draw_the_numbers_of_the_whole(shape):
    here = jax.vmap(lambda block: drawn(replicas._of_block(KEY, block), (2, *shape[1:])))(jnp.arange(4))
    for blocks, whole in zip(here, drawn(KEY, shape), strict=True):
        np.testing.assert_array_equal(blocks.reshape(shape), whole)


def test_a_number_for_all_rows_is_the_same_in_all_blocks():
    here = [jax.random.bits(replicas._of_block(KEY, jnp.int32(block))) for block in range(2)]
    assert here == [jax.random.bits(KEY)] * 2


def joined(words):
    """The numbers of upper and lower 32 bits."""
    high, low = (np.asarray(x, np.uint64).ravel() for x in words)
    return (high << np.uint64(32) | low).tolist()


@pytest.mark.parametrize(
    ("block", "shape"), [(5, (3, 2, 7)), (2**29 + 77, (3, 11, 13)), (2**31 - 1, (1, 5)), (1431655765, (1, 3))]
)
def test_positions_have_64_bits(block, shape):
    size = int(np.prod(shape))
    expected = [block * size + i for i in range(size)]
    assert joined(replicas._positions(jnp.uint32(block), shape)) == expected


def test_large_products(rng):
    a, b = rng.integers(0, 2**32, (2, 50), dtype=np.uint64)
    product = replicas._product(jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32))
    assert joined(product) == (a * b).tolist()


def test_other_generators_draw_other_numbers_in_each_block():
    key = jax.random.key(0, impl="rbg")
    first, second = (jax.random.bits(replicas._of_block(key, jnp.int32(block))) for block in range(2))
    assert first != second


@pytest.mark.parametrize(("axes", "expected"), [
    ({"data": 8}, True),
    ({"data": 1}, False),
    ({"data": 4, "fsdp": 2}, False),
    ({"data": 4, "expert": 2}, False),
])  # fmt: skip
def test_devices_with_all_parameters_are_replicas(axes, expected):
    devices = jax.devices()[: int(np.prod(list(axes.values())))]
    assert replicas.are_replicas(parallel.make_mesh(parallel.MeshConfig(**axes), devices)) == expected


def test_a_mesh_with_other_axes_has_no_replicas():
    assert not replicas.are_replicas(jax.make_mesh((8,), ("data",)))
    assert not replicas.are_replicas(jax.sharding.get_abstract_mesh())


KEYS = {"parallel.microbatches": "2", "train.batch_size": "16", "optimizer.name": "sgd"}
KEYS |= {"optimizer.learning_rate": "0.5", "optimizer.warmup_steps": "0", "optimizer.schedule": "constant"}
KEYS |= {"model.dropout": "0.2"}

ALSO = {
    "lm.py": {"model.attention_dropout": "0.2", "model.scan_layers": "True"},
    "lm.py:experts": {
        "model.num_experts": "4",
        "loss.model_terms.load_balance": "0.1",
        "loss.chunk_size": "8",
        "model.remat": "full",
    },
    "transformer_xl.py": {},
    "bert.py": {"model.attention_dropout": "0.2"},
}
"""Configs and their keys."""


def two_steps(config, source, devices):
    """The state after two steps on that many devices, the losses, and the compiled step."""
    overrides = KEYS | ALSO[config] | {"data.source": source}
    frozen = check_config(read_config(f"configs/{config.split(':')[0]}:tiny"), overrides.items())
    run = Run(find_experiment(frozen.experiment)(frozen), frozen, "nowhere", devices=jax.devices()[:devices])
    with run.placed():
        state, batches, losses = run.first_state(), run.loader.iterate(0), []
        batch = run.put(next(batches))
        step = run.jitted().lower(state, batch).compile()
        for _ in range(2):
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss"].mean))
            batch = run.put(next(batches))
    return jax.device_get(state), losses, step.as_text()


@pytest.mark.usefixtures("in_root")
@pytest.mark.thorough
@pytest.mark.parametrize("config", ALSO)
def test_devices_train_as_one_does_and_add_gradients_once(tmp_path, config):
    """With dropout, too. No loop has a collective, and those outside add each parameter once."""
    source = runs.write_corpus(tmp_path / "corpus")
    one, expected, _ = two_steps(config, source, 1)
    state, losses, program = two_steps(config, source, 4)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    loops, entry = program.split("\nENTRY ")
    assert not re.search(r" all-(reduce|gather)", loops)
    added = re.findall(r"f32\[([\d,]*)\]", "".join(re.findall(r"= (.*?) all-reduce\(", entry)))
    total = sum(math.prod(map(int, shape.split(","))) if shape else 1 for shape in added)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert count <= total < 1.01 * count + 100
