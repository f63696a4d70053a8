"""Loading: bit by bit as it is written, onto any mesh, in little more memory than the parameters take."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests import runs
from transformer.interop.tensor_rules import Rule, places
from transformer.interop.tensors import open_tensors, write_tensors
from transformer.interop.transfer import load, outputs

RULES = [
    Rule("table", "table", "v d -> v d"),
    Rule(("blocks/q", "blocks/k"), "h.{n}.qk", "d (c h k) -> c d h k"),
    Rule("blocks/out", "h.{n}.out", "d (h k) -> h k d"),
    Rule(("blocks/v", "blocks/w"), "h.{n}.vw", "(h k) d -> d h k", in_turn=True),
]

SHAPES = {"table": (16, 8), "blocks/q": (3, 8, 2, 4), "blocks/k": (3, 8, 2, 4), "blocks/out": (3, 2, 4, 8)}
SHAPES |= {"blocks/v": (3, 8, 4, 4), "blocks/w": (3, 8, 2, 4)}


def wanted(specs):
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    leaves = {
        path: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, specs.get(path)))
        for path, shape in SHAPES.items()
    }
    blocks = {path.partition("/")[2]: leaf for path, leaf in leaves.items() if "/" in path}
    return {"table": leaves["table"], "blocks": blocks}


@pytest.fixture
def arrays(rng):
    """13 of the 16 rows of the table are the vocabulary."""
    made = {path: rng.standard_normal(shape).astype(np.float32) for path, shape in SHAPES.items()}
    made["table"][13:] = 0
    return {
        "table": made["table"],
        "blocks": {path[7:]: x for path, x in made.items() if path[:7] == "blocks/"},
    }


@pytest.mark.parametrize(
    "specs",
    [
        dict.fromkeys(SHAPES, PartitionSpec()),
        {
            "table": PartitionSpec("a", "b"),
            "blocks/q": PartitionSpec(None, "a", "b"),
            "blocks/k": PartitionSpec(None, None, ("a", "b")[:1]),
            "blocks/out": PartitionSpec(None, "b", None, "a"),
            "blocks/v": PartitionSpec(None, "a", "b"),
            "blocks/w": PartitionSpec(None, None, "b", "a"),
        },
    ],
)
def test_what_is_written_is_loaded_onto_a_mesh(arrays, tmp_path, specs):
    found = places(RULES, SHAPES, 13)
    write_tensors(tmp_path, outputs(found, arrays, np.dtype(np.float32)), 1 << 40)
    tensors = open_tensors(tmp_path)
    assert tensors["table"].shape == (13, 8) and tensors["h.1.qk"].shape == (8, 16)
    target = wanted(specs)
    again = load(found, tensors, target)
    jax.tree.map(np.testing.assert_array_equal, again, arrays)
    jax.tree.map(
        lambda x, of: x.sharding.is_equivalent_to(of.sharding, x.ndim) or pytest.fail(), again, target
    )


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_other_types_become_float32(arrays, tmp_path, dtype):
    found = places(RULES, SHAPES, 13)
    write_tensors(tmp_path, outputs(found, arrays, np.dtype(dtype)), 1 << 40)
    again = load(found, open_tensors(tmp_path), wanted(dict.fromkeys(SHAPES, PartitionSpec())))
    rounded = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), arrays)
    jax.tree.map(np.testing.assert_array_equal, again, rounded)
    assert again["table"].dtype == jnp.float32


def test_a_fused_tensor_is_the_parts_side_by_side(arrays, tmp_path):
    """Against the definition: columns of all heads of q, then of k."""
    found = places(RULES, SHAPES, 13)
    q, k = arrays["blocks"]["q"][1], arrays["blocks"]["k"][1]
    expected = np.concatenate([q.reshape(8, 8), k.reshape(8, 8)], axis=1)
    np.testing.assert_array_equal(found["h.1.qk"].theirs([q, k]), expected)
    out = arrays["blocks"]["out"][2]
    np.testing.assert_array_equal(found["h.2.out"].theirs([out]), out.reshape(8, 8).T)


def test_parts_that_alternate_are_those_of_each_group(rng):
    """Against the definition: rows of q, k and v of one group, then of the next."""
    rule = Rule(("q", "k", "v"), "h.{n}.qkv", "(h k) d -> d h k", in_turn=True, turns=2)
    shapes = {"q": (1, 5, 2, 3), "k": (1, 5, 2, 3), "v": (1, 5, 4, 2)}
    parts = [rng.standard_normal(shape[1:]) for shape in shapes.values()]
    (place,) = places([rule], shapes).values()
    rows = [
        part[:, head]
        for group in range(2)
        for part, heads in zip(parts, (1, 1, 2), strict=True)
        for head in range(heads * group, heads * (group + 1))
    ]
    np.testing.assert_array_equal(place.theirs(parts), np.concatenate(rows, axis=1).T)
    piece = (slice(1, 3), slice(1, 2), slice(0, 2))
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(place.ours(place.theirs(parts), number, piece), part[piece])


@pytest.mark.parametrize("axes", ["(h k) 1 w -> w h k", "w (h k) -> h w k"])
def test_the_named_axis_has_the_opposite_order(rng, axes):
    rule = Rule(("a", "b"), "h.{n}.taps", axes, reverse="w", in_turn=True)
    shape = (4, 2, 3) if axes.startswith("(") else (2, 4, 3)
    (place,) = places([rule], {"a": (1, *shape), "b": (1, *shape)}).values()
    plain = Rule(("a", "b"), "h.{n}.taps", axes, in_turn=True)
    (forwards,) = places([plain], {"a": (1, *shape), "b": (1, *shape)}).values()
    parts = [rng.standard_normal(shape) for _ in "ab"]
    turned = [np.flip(x, shape.index(4)) for x in parts]
    np.testing.assert_array_equal(place.theirs(parts), forwards.theirs(turned))
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(place.ours(place.theirs(parts), number), part)


PEAK = """
import json, pathlib, struct, sys
import jax, numpy as np
from jax.sharding import SingleDeviceSharding
from transformer.interop.tensor_rules import Rule, places
from transformer.interop.tensors import open_tensors
from transformer.interop.transfer import load

def model(folder, layers, d):
    shapes = {"table": (6 * d, d), "blocks/up": (layers, d, 4 * d), "blocks/down": (layers, 4 * d, d)}
    rules = [
        Rule("table", "table", "v d -> v d"), Rule("blocks/up", "h.{n}.up", "f d -> d f"),
        Rule("blocks/down", "h.{n}.down", "d f -> f d"),
    ]
    found = places(rules, shapes, 6 * d - 3)
    header, end = {}, 0
    for name, place in found.items():
        size = 4 * int(np.prod(place.shape))
        header[name] = {"dtype": "F32", "shape": place.shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    where = SingleDeviceSharding(jax.devices()[0])
    leaf = lambda path: jax.ShapeDtypeStruct(shapes[path], np.float32, sharding=where)
    wanted = {"table": leaf("table"), "blocks": {"up": leaf("blocks/up"), "down": leaf("blocks/down")}}
    return lambda: jax.block_until_ready(load(found, open_tensors(folder), wanted)), end

def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))

folder = pathlib.Path(sys.argv[1])
model(folder / "small", 2, 8)[0]()
load_it, size = model(folder / "large", 40, 512)
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
before = status("VmRSS")
params = load_it()
print((status("VmHWM") - before) / size)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_memory_is_below_1_2_times_the_parameters(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path], cwd=runs.ROOT, capture_output=True, text=True, check=True
    )
    assert 0.9 < float(found.stdout) < 1.2, found.stdout
