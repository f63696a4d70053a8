"""Linear regression in context: a Transformer that fits a linear function to the examples in its input."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.base import Experiment
from transformer.config import Bounded, Nonnegative, NonnegativeFloat, Positive
from transformer.data.tasks.base import TaskData
from transformer.data.tasks.linear_regression import LinearRegression, least_risk
from transformer.errors import UserError
from transformer.layers.attention.products import attention_products
from transformer.models.vectors import VectorConfig, VectorTransformer
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Params
from transformer.training.hooks import Hook, Samples
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig

SAMPLE_PREDICTIONS = 8
"""The number of predictions that are written as samples."""


def closed_form(tokens_btc: jax.Array, noise: float = 0.0) -> jax.Array:
    """(b,): the predictions x . sum_i y_i x_i / (n + d + 1 + s^2) of the best layer of linear attention (see
    `least_risk`), from rows of `LinearRegression`."""
    x_bnd, y_bn, query_bd = tokens_btc[:, :-1, :-1], tokens_btc[:, :-1, -1], tokens_btc[:, -1, :-1]
    _, n, d = x_bnd.shape
    return jnp.einsum("bd,bnd,bn->b", query_bd, x_bnd, y_bn) / (n + d + 1 + noise**2)


@dataclass(frozen=True)
class RegressionDataConfig(Bounded):
    """Linear functions with examples, which are generated (see `LinearRegression`)."""

    dimension: Positive = 5  # dimension d of the inputs
    examples: Positive = 20  # examples n in context
    noise: NonnegativeFloat = 0.0  # standard deviation of the noise of the examples
    evaluated_rows: Positive = 16384  # functions that are evaluated
    workers: Nonnegative = 1  # threads that prepare batches ahead; 0: none


@dataclass(frozen=True)
class RegressionConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: VectorConfig
    data: RegressionDataConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        length, width = self.data.examples + 1, self.data.dimension + 1
        if length > self.model.max_length:
            raise UserError(
                f"model.max_length: {self.model.max_length}; the examples and the query are {length}"
            )
        if not self.model.projections and self.model.d_model != width:
            setting = f"model.d_model: {self.model.d_model} without projections"
            raise UserError(f"{setting}; expected data.dimension + 1, {width}")


class InContextRegression(Experiment):
    """The squared error of predictions of w . x from examples of w."""

    Config = RegressionConfig

    def __init__(self, config: RegressionConfig) -> None:
        self.config, c = config, config.data
        self.arguments = {"dimension": c.dimension, "examples": c.examples, "noise": c.noise}
        self.task = LinearRegression(**self.arguments)  # type: ignore[arg-type]
        self.data = TaskData(c, self.task, "linear_regression", self.arguments)
        self.model = VectorTransformer(config.model)

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        return self.model.init(rng, jnp.zeros((1, 1, self.task.dimension + 1)))["params"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, the squared error; `closed_form`, that of the prediction of `least_risk`."""
        x_btd, weights_b = batch["tokens"], batch["weights"]
        y_b = self.model.apply({"params": params}, x_btd, train, rngs={"dropout": rng})
        best_b = closed_form(x_btd, self.task.noise)
        return {
            "loss": Sum.of(jnp.square(y_b - batch["targets"]), weights_b),
            "closed_form": Sum.of(jnp.square(best_b - batch["targets"]), weights_b),
        }

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of functions."""
        return {"loss": jnp.sum(batch["weights"])}

    @property
    def tokens_per_example(self) -> int:
        """The examples and the query."""
        return self.task.examples + 1

    @property
    def attention_products(self) -> float:
        """See `Experiment`."""
        return attention_products(self.config.model.stack(), self.tokens_per_example)

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Samples: predictions and targets of the first functions of the validation split."""

        def sample(params: Params) -> str:
            batch = self.task.batch("validation", np.arange(SAMPLE_PREDICTIONS))
            pairs = zip(self._predictions(params, batch["tokens"]), batch["targets"], strict=True)
            return "\n".join(f"prediction {y:8.4f}  target {target:8.4f}" for y, target in pairs)

        return [Samples(self.config.train, folder, sample)]

    def problem(self, text: str) -> str:
        """Why a text is not a list of examples and a query; "" if it is one."""
        try:
            self._read(text)
        except UserError as error:
            return f"{text!r} {error}"
        return ""

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each text, "x x y; x x y; x x", the prediction at the last x. `seed` is ignored."""
        for text in texts:
            yield [f"{self._predictions(params, self._read(text)[None])[0]:.4f}"]

    def _read(self, text: str) -> np.ndarray:
        """(n + 1, d + 1): the examples, and the query with 0."""
        d = self.task.dimension
        try:
            rows = [[float(word) for word in row.split()] for row in text.split(";")]
        except ValueError:
            raise UserError("is not a list of numbers") from None
        if len(rows) < 2 or [*map(len, rows)] != [d + 1] * (len(rows) - 1) + [d]:
            raise UserError(f"is not examples of {d + 1} numbers and a query of {d}, separated by ;")
        if len(rows) > (most := self.config.model.max_length):
            raise UserError(
                f"is {len(rows)} vectors with the query; expected at most {most} (model.max_length)"
            )
        rows[-1].append(0.0)
        with np.errstate(over="ignore"):
            tokens_tc = np.array(rows, np.float32)
        if not np.isfinite(tokens_tc).all():
            raise UserError("has a number that is not finite in float32")
        return tokens_tc

    @functools.cached_property
    def _predictions(self) -> Callable[..., jax.Array]:
        return jax.jit(lambda params, x_btc: self.model.apply({"params": params}, x_btc))

    def example_flags(self) -> list[str]:
        """The first function of the test split."""
        tokens_tc = self.task.batch("test", np.array([0]))["tokens"][0]
        *examples, query = (" ".join(f"{value:.2f}" for value in row) for row in tokens_tc)
        return [f"--prompt={'; '.join([*examples, query.rpartition(' ')[0]])}"]

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The squared error, that of the best layer of linear attention, and that of predicting 0."""
        least = least_risk(**self.arguments)  # type: ignore[arg-type]
        return [
            f"squared error {measured['eval/loss']:.4f}; of the best layer of linear attention "
            f"{measured['eval/closed_form']:.4f}, expected {least:.4f}; of predicting 0 {self.task.dimension}"
        ]
