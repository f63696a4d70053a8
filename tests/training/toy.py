"""A minimal experiment for the training loop: a linear model."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from transformer.training import parallel
from transformer.training.metrics import Sum
from transformer.training.state import State
from transformer.training.step import make_train_step

WIDTH = 8


class Linear(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.1), ("embed", "mlp"))
        return nn.Dense(WIDTH, kernel_init=init)(x)


class Toy:
    model: nn.Module = Linear()

    def init(self, rng: jax.Array) -> Any:
        return self.model.init(rng, jnp.zeros((1, WIDTH)))["params"]

    def loss(self, params: Any, batch: Mapping, rng: jax.Array, train: bool) -> dict[str, Sum]:
        x = batch["x"]
        if train:
            x = x * jax.random.bernoulli(rng, 0.9, x.shape)
        error = self.model.apply({"params": params}, x) - batch["y"]
        return {"loss": Sum.of(jnp.mean(error**2, -1))}

    def weigh(self, batch: Mapping) -> dict[str, jax.Array]:
        return {"loss": jnp.float32(batch["x"].shape[0])}


class Loader:
    """Rows drawn from (seed, step); the targets of the steps in `poison` are NaN."""

    def __init__(self, rows: int = 8, poison: tuple[int, ...] = ()):
        self.rows, self.poison, self.asked = rows, poison, []

    def batch_at(self, step: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng((7, step))
        x = rng.normal(size=(self.rows, WIDTH)).astype(np.float32)
        y = np.roll(x, 1, axis=1) * (np.nan if step in self.poison else 1)
        return {"x": x, "y": y.astype(np.float32)}

    def __len__(self) -> int:
        return 100

    def iterate(self, start: int):
        while True:
            self.asked.append(start)
            yield self.batch_at(start)
            start += 1


def setup(shape: tuple[int, int, int] = (1, 1, 1), ema: bool = False, seed: int = 0, optimizer: Any = None):
    """(mesh, abstract sharded state, jitted init, jitted train step) on a mesh of this shape."""
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = parallel.make_mesh(parallel.MeshConfig(*shape), devices)
    toy, optimizer = Toy(), optimizer or optax.adam(0.05)

    def create():
        return State.create(parallel.unboxed(toy.init(jax.random.key(seed))), optimizer, ema)

    def boxed():
        return create().replace(params=toy.init(jax.random.key(seed)))

    abstract = jax.eval_shape(boxed)
    shardings = parallel.state_shardings(abstract, mesh, parallel.RULES["default"])
    step = make_train_step(toy, optimizer, seed=seed, ema_decay=0.9 if ema else 0.0)
    step = jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))
    init = jax.jit(create, out_shardings=shardings)
    return mesh, parallel.with_shardings(abstract, shardings), init, step


def assert_same(a: Any, b: Any) -> None:
    """Bit for bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=jax.tree_util.keystr(path))
