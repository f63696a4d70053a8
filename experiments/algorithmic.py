"""Algorithmic tasks: a decoder over integers that a rule generates."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.base import Experiment
from transformer.conditions import Condition
from transformer.config import Bounded, Nonnegative, OneOf, Positive
from transformer.data.loader import DataLoader
from transformer.data.tasks import TASKS
from transformer.data.tasks.base import TaskData, make_task
from transformer.errors import UserError
from transformer.evaluation.attention_weights import AttentionMap, attention_weights
from transformer.layers.attention.products import attention_products
from transformer.layers.measures import Measures
from transformer.models.decoder import DecoderConfig
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Params
from transformer.training.hooks import Hook
from transformer.training.losses.token_losses import LossConfig, loss_of_states, token_losses, token_weights
from transformer.training.metrics import Sum
from transformer.training.run_config import RunConfig
from transformer.visualization.attention_maps import draw_attention


@dataclass(frozen=True)
class TaskDataConfig(Bounded):
    """A task, whose rows are generated."""

    source: Annotated[str, OneOf(TASKS)] = "repeats"  # the task
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # arguments of the task
    # rows of an endless task that are evaluated
    evaluated_rows: Annotated[Positive, Condition("is_endless", reason="with a task of a fixed size")] = 1024
    workers: Nonnegative = 1  # threads that prepare batches ahead; 0: none

    def __post_init__(self) -> None:
        super().__post_init__()
        self.task()

    @property
    def is_endless(self) -> bool:
        """Whether the task has any number of rows."""
        return self.task().size("validation") is None

    def task(self) -> Any:
        """The task with its arguments."""
        return make_task(TASKS[self.source], self.source, self.arguments)


@dataclass(frozen=True)
class AlgorithmicConfig(RunConfig):
    """The config of a run: one group of keys for each part."""

    model: DecoderConfig
    data: TaskDataConfig
    loss: LossConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        length = self.data.task().longest
        if length > self.model.max_length:
            raise UserError(
                f"model.max_length: {self.model.max_length}; rows of the task have {length} tokens"
            )

    def function(self) -> dict[str, Any]:
        """See `RunConfig`: and the number of tokens, of which the last ones have a meaning of their own."""
        return super().function() | {"the vocabulary of data.source": self.data.task().vocab_size}


class Algorithmic(Experiment):
    """A decoder that predicts the next integer; answers, the targets that follow from the rule, are also
    evaluated apart."""

    Config = AlgorithmicConfig
    measures = Measures

    def __init__(self, config: AlgorithmicConfig) -> None:
        self.config = config
        self.task = config.data.task()
        self.data = TaskData(config.data, self.task, config.data.source, config.data.arguments)
        self.model: Any = config.model.build(self.task.vocab_size)

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        return self.model.init(rng, jnp.zeros((1, 1), jnp.int32))["params"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per predicted token; `answer_loss`, nats per answer; `accuracy`, the share of answers
        that are most probable."""
        apply = functools.partial(self.model.apply, {"params": params})
        x_btd, sown = apply(
            batch["tokens"], train=train, rngs={"dropout": rng}, method="hidden", mutable="terms"
        )
        unembed, loss = functools.partial(apply, method="unembed"), self.config.loss
        vocab_size, targets_bt = self.model.vocab_size, batch["targets"]
        nll_bt, *_ = loss_of_states(unembed, x_btd, targets_bt, loss, vocab_size)
        right_bt = jnp.argmax(unembed(x_btd), axis=-1) == targets_bt
        answers_bt = batch["weights"] * batch["answers"]
        return {
            **token_losses(unembed, x_btd, batch, loss, vocab_size, train, sown),
            "answer_loss": Sum.of(jax.lax.stop_gradient(nll_bt), answers_bt),
            "accuracy": Sum.of(right_bt, answers_bt),
        }

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of target tokens."""
        return token_weights(batch["weights"], self.config.loss)

    def train_data(self) -> DataLoader:
        """Shuffled rows of the training split; all of them in each batch need no shuffling."""
        c = self.config.train
        whole = self.task.size("train") == c.batch_size and not c.until
        return self.loader("train", shuffle=not whole, repeat=True)

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Attention maps of the last layer over the first row of the validation split."""
        tokens_t = self.task.batch("validation", np.array([0]))["tokens"][0]
        names = [str(token) for token in tokens_t]

        def attend(params: Params) -> AttentionMap | None:
            if not self.config.model.has_attention:
                return None
            return attention_weights(self.model, params, tokens_t), names, names

        return [self.pictures(folder, folder.attention, attend, draw_attention)]

    @property
    def tokens_per_example(self) -> int:
        """The length of a row."""
        return self.task.length

    @property
    def attention_products(self) -> float:
        """See `Experiment`."""
        return attention_products(self.config.model.stack(causal=True), self.task.length, causal=True)

    def problem(self, text: str) -> str:
        """Why a text is not a prompt of the task; "" if it is one."""
        try:
            self._prompt(text)
        except UserError as error:
            return f"{text!r} {error}"
        return ""

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """For each text of integers the most probable next one. `seed` is ignored."""
        for text in texts:
            prompt = self._prompt(text)
            row_1t = np.zeros((1, self.task.length), np.int32)
            row_1t[0, : len(prompt)] = prompt
            logits_1tv = self._logits(params, row_1t)
            yield [str(int(jnp.argmax(logits_1tv[0, len(prompt) - 1])))]

    def _prompt(self, text: str) -> list[int]:
        try:
            numbers = [int(word) for word in text.split()]
        except ValueError:
            raise UserError("is not a list of integers") from None
        return self.task.prompt(numbers)

    @functools.cached_property
    def _logits(self) -> Callable[..., jax.Array]:
        return jax.jit(lambda params, tokens_bt: self.model.apply({"params": params}, tokens_bt))

    def example_flags(self) -> list[str]:
        """A prompt of the task."""
        return [f"--prompt={self.task.example}"]

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The accuracy of answers, and their loss."""
        accuracy, loss = measured["eval/accuracy"], measured["eval/answer_loss"]
        return [f"{accuracy:.1%} of the answers of the validation split are right, {loss:.4f} nats each"]
