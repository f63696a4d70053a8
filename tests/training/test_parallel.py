import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from tests.parameters import roles_by_name
from transformer.errors import UserError
from transformer.models.decoder import Decoder, DecoderConfig
from transformer.models.encoder import EncoderConfig, TextEncoder
from transformer.training import parallel
from transformer.training.extras.step_options import reshard_stacks
from transformer.training.optim.optimizer import OptimizerConfig, make_optimizer
from transformer.training.state import State

RULES = parallel.RULES["default"]


def state(params, opt_state):
    return State(jnp.zeros((), jnp.int32), params, opt_state, None, jnp.zeros((), jnp.int32))


def boxed_params(vocab=16, width=8, hidden=32):
    def param(shape, names):
        return nn.LogicallyPartitioned(jnp.ones(shape), names)

    return {
        "embedding": {"table": param((vocab, width), ("vocab", "embed"))},
        "blocks": {
            "up": {"kernel": param((2, width, hidden), ("layers", "embed", "mlp"))},
            "down": {"kernel": param((2, hidden, width), ("layers", "mlp", "embed"))},
            "norm": {"scale": param((2, width), ("layers", "norm"))},
        },
    }


EXPECTED = {
    "embedding/table": P("tensor", ("fsdp", "context")),
    "blocks/up/kernel": P(None, ("fsdp", "context"), "tensor"),
    "blocks/down/kernel": P(None, "tensor", ("fsdp", "context")),
    "blocks/norm/scale": P(None, None),
}


def mesh(data=1, fsdp=1, tensor=1, context=1):
    devices = jax.devices()
    if -1 not in (data, fsdp, tensor):
        devices = devices[: data * fsdp * tensor * context]
    return parallel.make_mesh(parallel.MeshConfig(data, fsdp, tensor, context), devices)


def optimizer(name="adamw"):
    config = OptimizerConfig(
        name=name, learning_rate=0.1, schedule="constant", warmup_steps=0, final_fraction=0.0, clip_norm=0.0
    )
    return make_optimizer(config, 10, roles=roles_by_name)[0]


def leaves(tree):
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def toy_state(tx, boxed_moments):
    params = boxed_params()
    return state(params, tx.init(params if boxed_moments else nn.unbox(params)))


def sizes(**others):
    return dict.fromkeys(("slice", "data", "fsdp", "expert", "context", "tensor"), 1) | others


def test_one_axis_takes_what_is_left():
    assert dict(mesh(-1, 2, 2).shape) == sizes(data=2, fsdp=2, tensor=2)
    assert dict(mesh(1, -1, 1).shape) == sizes(fsdp=8)


@pytest.mark.parametrize("boxed_moments", [False, True])
@pytest.mark.parametrize("name", ["adamw", "sgd", "contrib.muon", "adafactor"])
def test_every_array_of_the_state_lies_like_its_parameter(name, boxed_moments):
    tx = optimizer(name)
    abstract = jax.eval_shape(lambda: toy_state(tx, boxed_moments))
    shardings = parallel.state_shardings(abstract, mesh(2, 2, 2), RULES)
    with parallel.placed(mesh(2, 2, 2), RULES):
        state = jax.jit(lambda: parallel.unboxed(toy_state(tx, boxed_moments)), out_shardings=shardings)()
    shapes = {path: leaf.shape for path, leaf in leaves(state.params)}
    seen = {path: 0 for path in EXPECTED}
    for full, leaf in leaves(state):
        owner = next((p for p in EXPECTED if full.endswith(p) and leaf.shape == shapes[p]), None)
        spec = EXPECTED[owner] if owner else P()
        assert leaf.sharding.is_equivalent_to(jax.NamedSharding(mesh(2, 2, 2), spec), leaf.ndim), full
        if owner:
            seen[owner] += 1
    moments = {"adamw": 3, "sgd": 1, "contrib.muon": 2, "adafactor": 1}[name]
    assert min(seen.values()) >= moments
    table = state.params["embedding"]["table"]
    assert {shard.data.shape for shard in table.addressable_shards} == {(8, 4)}


def forward(params, batch):
    hidden = jnp.einsum("btd,df->btf", batch["x"], params["up"]["kernel"][0])
    hidden = jnp.cos(nn.with_logical_constraint(hidden, ("batch", "length", "mlp")))
    out = jnp.einsum("btf,fd->btd", hidden, params["down"]["kernel"][0])
    return nn.with_logical_constraint(out, ("batch", "length", "activation_embed"))


def cosine_sizes(program):
    return {
        np.prod([int(n) for n in found.split(",")])
        for found in re.findall(r"\[([\d,]+)\]\S* cosine\(", program)
    }


def test_the_state_of_some_blocks_lies_like_that_of_all():
    """Where the lowest blocks are frozen the moments have fewer rows than their parameters."""
    mesh = parallel.make_mesh(parallel.MeshConfig(1, 4, 2), jax.devices()[:8])
    boxed = jax.eval_shape(boxed_params)
    config = OptimizerConfig(name="adamw", frozen_layers=1, schedule="constant")
    optimizer, _ = make_optimizer(config, 10, roles=roles_by_name)
    opt_state = jax.eval_shape(optimizer.init, boxed)
    shardings = parallel.state_shardings(state(boxed, opt_state), mesh, RULES).opt_state
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): sharding.spec
        for path, sharding in jax.tree_util.tree_leaves_with_path(shardings)
    }
    moments = {name: spec for name, spec in found.items() if name.endswith("kernel")}
    assert len(moments) == 4
    for name, spec in moments.items():
        over = ("fsdp", "context")
        wanted = P(None, over, "tensor") if "up/" in name else P(None, "tensor", over)
        assert spec == wanted, name


def test_compiled_program_obeys_parameters_and_constraints(rng):
    """The annotations alone prove nothing: the shapes in the partitioned program do."""
    grid = mesh(2, 2, 2)
    x = rng.normal(size=(8, 4, 8)).astype(np.float32)
    batch = parallel.put_batch({"x": x}, parallel.batch_sharding(grid))
    tx = optimizer("sgd")
    shardings = parallel.state_shardings(jax.eval_shape(lambda: toy_state(tx, False)), grid, RULES)
    params = jax.jit(lambda: nn.unbox(toy_state(tx, False)), out_shardings=shardings)().params["blocks"]
    with parallel.placed(grid, RULES):
        compiled = jax.jit(forward).lower(params, batch).compile()
    text = compiled.as_text()
    parameters = re.findall(r"f32\[([\d,]+)\]\S* parameter\(\d\)", text)
    assert "2,4,16" in parameters  # up: (2, 8, 32) with embed over fsdp, mlp over tensor
    assert "2,16,4" in parameters
    assert "2,4,8" in parameters  # 8 rows over data x fsdp
    assert cosine_sizes(text) == {2 * 4 * 16}  # 2 of 8 rows, 16 of 32 hidden units
    assert "all-gather" in text  # of the parameters, over fsdp
    assert "all-reduce" in text  # of the partial sums, over tensor
    out = compiled(params, batch)
    assert out.sharding.is_equivalent_to(parallel.batch_sharding(grid), 3)
    wanted = np.cos(x.astype(np.float64).sum(-1, keepdims=True)) * 32 * np.ones(8)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)


def test_the_constraint_on_an_activation_cuts_what_its_inputs_do_not(rng):
    """With every parameter whole, only the constraint can cut the hidden units over `tensor`."""
    grid = mesh(2, 2, 2)
    whole = jax.NamedSharding(grid, P())
    params = jax.device_put(nn.unbox(boxed_params())["blocks"], whole)
    batch = parallel.put_batch({"x": np.ones((8, 4, 8), np.float32)}, parallel.batch_sharding(grid))
    outside = jax.jit(forward).lower(params, batch).compile().as_text()
    assert cosine_sizes(outside) == {2 * 4 * 32}
    with parallel.placed(grid, RULES):
        inside = jax.jit(lambda *inputs: forward(*inputs)).lower(params, batch).compile().as_text()
    assert cosine_sizes(inside) == {2 * 4 * 16}


def test_a_constraint_without_the_context_does_nothing():
    """Why `placed` exists; when this fails, flax has changed and `placed` may go."""
    grid = mesh(8)

    def constrain(x):
        return nn.with_logical_constraint(x, ("batch", "embed"))

    x = jnp.ones((8, 4))
    assert len(jax.jit(lambda x: constrain(x))(x).sharding.device_set) == 1
    with parallel.placed(grid, RULES):
        assert len(jax.jit(lambda x: constrain(x))(x).sharding.device_set) == 8


@pytest.mark.parametrize("shape", [(8, 1, 1, 1), (1, 8, 1, 1), (2, 2, 2, 1), (1, 1, 8, 1), (2, 1, 1, 4)])
def test_batches_arrive_whole_and_in_order(shape, rng):
    batch = {"tokens": (16, 12), "odd": (16, 3), "label": (16,)}
    batch = {name: rng.integers(0, 9, size=size).astype(np.int32) for name, size in batch.items()}
    put = parallel.put_batch(batch, parallel.batch_sharding(mesh(*shape)))
    rows = 16 // (shape[0] * shape[1])
    parts = {"tokens": (rows, 12 // shape[3]), "odd": (rows, 3), "label": (rows,)}
    for name, values in batch.items():
        np.testing.assert_array_equal(put[name], values)
        assert put[name].addressable_shards[0].data.shape == parts[name]


def test_optimizer_steps_agree_on_every_mesh(rng):
    tx = optimizer("adamw")
    gradients = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), nn.unbox(boxed_params())
    )
    results = []
    for shape in ((1, 1, 1), (2, 2, 2), (1, 8, 1)):
        grid = mesh(*shape)
        shardings = parallel.state_shardings(jax.eval_shape(lambda: toy_state(tx, False)), grid, RULES)
        state = jax.jit(lambda: nn.unbox(toy_state(tx, False)), out_shardings=shardings)()

        def update(state, gradients):
            updates, opt_state = tx.update(gradients, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            return state.replace(step=state.step + 1, params=params, opt_state=opt_state)

        results.append(jax.jit(update, out_shardings=shardings)(state, gradients))
    for other in results[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), results[0], other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parallel.MeshConfig(0, 1, 1), r"^data: 0; expected 1 or more devices"),
        (lambda: parallel.MeshConfig(-1, -1, 1), r"^fsdp: -1, but data is -1 too"),
        (
            lambda: parallel.make_mesh(parallel.MeshConfig(-1, 3, 1)),
            r"fsdp 3.* does not divide the 8 devices",
        ),
        (lambda: parallel.make_mesh(parallel.MeshConfig(2, 1, 1)), r"^parallel.mesh: data 2 "),
        (lambda: parallel.ParallelConfig(parallel.MeshConfig(-1, 1, 1), 0, "default"), r"^microbatches: 0"),
        (lambda: parallel.ParallelConfig(parallel.MeshConfig(-1, 1, 1), 1, "no"), r"^rules: 'no'; .*default"),
        (
            lambda: parallel.check_batch_size("train.batch_size", 12, mesh(4, 2), 1),
            r"^train.batch_size: 12 .*multiple of 8 ",
        ),
        (
            lambda: parallel.check_batch_size("train.batch_size", 8, mesh(4), 4),
            r"multiple of 16 = data 4 x fsdp 1 .*4 microbatches",
        ),
    ],
)
def test_errors_name_the_key(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("devices", [1, 6, 8])
def test_the_mesh_of_the_message_fits_any_number_of_devices(devices):
    with pytest.raises(UserError, match=rf"divide the {devices} devices; data -1 with all others 1 fits any"):
        parallel.make_mesh(parallel.MeshConfig(data=-1, fsdp=16), jax.devices()[:devices])
    assert parallel.make_mesh(parallel.MeshConfig(data=-1), jax.devices()[:devices]).size == devices


def test_token_types_are_not_divided_with_the_vocabulary():
    """Two rows, over more devices."""
    model = TextEncoder(EncoderConfig(d_model=16, num_layers=1, num_heads=8, d_ff=32), vocab_size=128)
    abstract = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    mesh = parallel.make_mesh(parallel.MeshConfig(data=1, tensor=8))
    found = parallel.state_shardings(state(abstract["params"], ()), mesh, RULES).params
    assert found["token_types"]["table"].spec[0] is None
    assert found["embedding"]["table"].spec[0] == "tensor"


def test_indivisible_dimension_names_parameter_and_axis():
    params = {"head": {"kernel": nn.LogicallyPartitioned(jnp.ones((8, 9)), ("embed", "vocab"))}}
    with pytest.raises(UserError, match=r"mesh.tensor: 2 .*dimension 1 \('vocab', 9 wide\).*head/kernel"):
        parallel.state_shardings(state(params, ()), mesh(2, 2, 2), RULES)
    params = {"head": {"kernel": nn.LogicallyPartitioned(jnp.ones((12, 8)), ("embed", "vocab"))}}
    with pytest.raises(UserError, match=r"mesh.fsdp: 8 .*dimension 0 \('embed', 12 wide\)"):
        parallel.state_shardings(state(params, ()), mesh(1, 8), RULES)
    with pytest.raises(UserError, match=r"mesh.fsdp x context: 8 .*dimension 0 \('embed', 12 wide\)"):
        parallel.state_shardings(state(params, ()), mesh(1, 2, 1, 4), RULES)


def gradient(axes, rules="default"):
    """The compiled gradient of a model of one block, (8, 512) tokens, over eight devices, or one without
    axes; and its number of parameters."""
    config = DecoderConfig(num_layers=1, d_model=64, num_heads=4, d_ff=256, max_length=512)
    model, tokens = Decoder(config, 128), np.zeros((8, 512), np.int32)
    boxed = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    grid = parallel.make_mesh(parallel.MeshConfig(**{"data": 1} | axes), jax.devices()[: 8 if axes else 1])
    shardings = parallel.state_shardings(state(boxed, ()), grid, parallel.RULES[rules]).params
    with parallel.placed(grid, parallel.RULES[rules]):
        given = jax.ShapeDtypeStruct(tokens.shape, jnp.int32, sharding=parallel.batch_sharding(grid))
        params = parallel.with_shardings(boxed, shardings)
        step = jax.grad(lambda params, tokens: jnp.sum(model.apply({"params": params}, tokens) ** 2))
        program = jax.jit(step, out_shardings=shardings).lower(params, given).compile()
    return program, sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(parallel.unboxed(boxed)))


@pytest.mark.thorough
@pytest.mark.parametrize("axes", [{"fsdp": 2, "context": 4}, {"fsdp": 4, "tensor": 2}, {"fsdp": 8}])
def test_no_axis_multiplies_the_work_of_a_model_or_gathers_what_it_divides(axes):
    """Each of eight devices does an eighth of the FLOPs, and gathers parameters alone: no sequence, no
    batch. A parameter is gathered at most once in the forward and once in the backward pass."""
    (one, _), (many, count) = gradient({}), gradient(axes)
    assert many.cost_analysis()["flops"] < 1.3 * one.cost_analysis()["flops"] / 8
    gathered = re.findall(r"= \(?f32\[([\d,]+)\]\S* all-gather", many.as_text())
    total = sum(math.prod(map(int, shape.split(","))) for shape in gathered)
    assert 0 < total <= 2 * count / axes.get("tensor", 1)


@pytest.mark.thorough
@pytest.mark.parametrize("rules", ["sequence", "default"])
def test_beside_tensor_the_axis_context_still_divides_sequences(rules):
    """No device receives a whole one, of 512 tokens, or computes more than without the axis."""
    (without, _), (with_it, _) = (
        gradient({"data": 4, "tensor": 2}),
        gradient({"data": 2, "context": 2, "tensor": 2}, rules),
    )
    assert with_it.cost_analysis()["flops"] < 1.02 * without.cost_analysis()["flops"]
    received = re.findall(r"= \(?\w+\[([\d,]+)\]\S* all-(?:gather|reduce)\(", with_it.as_text())
    assert received and not any("512" in shape.split(",") for shape in received)
    # columns of the table are gathered, not those of the tokens looked up, (4, 256, 64) on each device
    assert not re.search(r"= \w+\[4,256,64\]\S* all-gather\([^\n]*_take", with_it.as_text())


MUONS = [{"fsdp": 8}, {"data": 2, "fsdp": 4}, {"fsdp": 4, "tensor": 2}, {"fsdp": 2, "context": 4}]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("axes", MUONS)
@pytest.mark.parametrize("layers", [8, 6])
def test_muon_exchanges_matrices_and_gathers_none(rng, axes, layers):
    """Its updates are those of one device, also of fewer layers than devices."""
    cut = {"up": ((16, 32), ("embed", "mlp")), "down": ((32, 16), ("mlp", "embed"))}
    boxed = {
        "blocks": {
            name: {"kernel": nn.LogicallyPartitioned(jnp.ones((layers, *shape)), ("layers", *names))}
            for name, (shape, names) in cut.items()
        }
    }
    params, tx = nn.unbox(boxed), optimizer("contrib.muon")
    gradients = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)
    expected, _ = tx.update(gradients, tx.init(params), params)
    grid = parallel.make_mesh(parallel.MeshConfig(**{"data": 1} | axes))
    whole = parallel.state_shardings(jax.eval_shape(lambda: state(boxed, tx.init(boxed))), grid, RULES)
    deal = functools.partial(
        reshard_stacks, shardings=whole.params, chosen=lambda path: roles_by_name(path).is_hidden
    )

    def update(gradients, opt_state, params):
        return deal(tx.update(*deal((gradients, opt_state)), params))

    shardings = whole.params, whole.opt_state, whole.params
    given = jax.device_put((gradients, tx.init(params), params), shardings)
    with parallel.placed(grid, RULES):
        program = jax.jit(update, out_shardings=shardings[:2]).lower(*given).compile()
        found, _ = program(*given)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    if layers == 8 and axes.keys() <= {"fsdp", "context"}:
        text = program.as_text()
        assert "all-to-all" in text
        assert not re.findall(r"= f32\[8,\d+,\d+\]\S* all-(?:gather|reduce)", text)


@pytest.mark.thorough
@pytest.mark.parametrize("t", [7, 512, 16])
def test_sequences_are_divided_between_attention_and_feed_forward(t):
    """With the same gradients, and less memory; also for a length that does not divide."""
    config = DecoderConfig(num_layers=4, d_model=64, num_heads=4, d_ff=64, max_length=512, remat="full")
    model = Decoder(dataclasses.replace(config, scan_layers=True), 32)
    grid = parallel.make_mesh(parallel.MeshConfig(data=1, tensor=4, context=2))

    def run(name):
        tokens = np.random.default_rng(t).integers(0, 32, (2, t))
        params = nn.unbox(jax.jit(model.init)(jax.random.key(0), tokens))["params"]
        with parallel.placed(grid, parallel.RULES[name]):
            step = jax.jit(jax.grad(lambda params: jnp.mean(model.apply({"params": params}, tokens) ** 2)))
            program = step.lower(params).compile()
            return program(params), program.memory_analysis().temp_size_in_bytes

    (expected, more), (found, less) = run("default"), run("sequence")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    assert t < 512 or less < 0.8 * more
