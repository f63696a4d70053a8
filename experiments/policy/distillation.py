"""Distillation: a model learns the distributions of a teacher, on answers of the data or on its own."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from experiments.chat import Chat, ChatConfig
from experiments.language_modeling import LanguageModelingConfig
from experiments.policy.divergences import DIVERGENCES
from experiments.policy.grpo import PromptData
from experiments.policy.taught_step import TaughtStep
from transformer.conditions import only
from transformer.config import Bound, Bounded, Fraction, OneOf, Place, Positive, PositiveFloat
from transformer.data.cache.disk_cache import digest
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.run_folder import HUB, RunFolder
from transformer.training import parallel
from transformer.training.checkpoints.checksums import checksums
from transformer.training.checkpoints.initialize import Checkpoint, Origin
from transformer.training.experiment import Batch, Params
from transformer.training.losses.logits_memory import chunked
from transformer.training.losses.token_losses import LossConfig, model_terms
from transformer.training.metrics import Sum
from transformer.training.parallel import rows_here
from transformer.training.run import Run

Inside = Annotated[float, Bound("a fraction in (0, 1)", 0, 1, without=(0, 1))]


@dataclass(frozen=True)
class DivergenceConfig(LossConfig):
    """The loss of each token of an answer; without a teacher that of `LossConfig`."""

    divergence: Annotated[str, OneOf(DIVERGENCES)] = "forward"  # of the student from the teacher
    # weight of the teacher's distribution in the mean of both
    beta: Annotated[Inside, only("divergence", "jsd")] = 0.5
    temperature: PositiveFloat = 1.0  # T: of softmax(logits / T) of both; the loss is times T^2


@dataclass(frozen=True)
class StudentAnswersConfig(Bounded):
    """Answers that the student draws."""

    share: Fraction = 0.0  # of steps that learn from drawn answers, not from those of the data
    max_new_tokens: Positive = 64  # longest answer, with its end
    temperature: PositiveFloat = 1.0  # answers are drawn from softmax(logits / temperature)

    samples: ClassVar[int] = 1
    updates: ClassVar[int] = 1


@dataclass(frozen=True)
class DistillationConfig(ChatConfig):
    """The config of a run: one group of keys for each part."""

    loss: DivergenceConfig
    rollout: StudentAnswersConfig
    teacher: Place = ""  # run whose distributions to learn, or hf:FOLDER; "": learn the answers themselves

    scheduled: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        loss, r, length = self.loss, self.rollout, self.data.sequence_length
        if r.share and not self.teacher:
            raise UserError(
                f"rollout.share: {r.share} without a teacher to learn from; expected 0, or a teacher"
            )
        if r.share and r.max_new_tokens >= length:
            raise UserError(
                f"rollout.max_new_tokens: {r.max_new_tokens} leave no token of a prompt in a row of "
                f"data.sequence_length {length}"
            )
        for key in ("name", "label_smoothing", "z_loss", "model_terms", "vocab_parts"):
            if self.teacher and getattr(loss, key) != (plain := getattr(LossConfig(), key)):
                raise UserError(f"loss.{key}: {getattr(loss, key)!r} with a teacher; expected {plain!r}")

    def idle(self) -> dict[str, str]:
        """See `Bounded`; without a teacher its keys, and without drawn answers theirs."""
        keys = () if self.teacher else ("loss.divergence", "loss.temperature")
        drawn = () if self.rollout.share else ("rollout.max_new_tokens", "rollout.temperature")
        return super().idle() | dict.fromkeys(keys, "without a teacher") | dict.fromkeys(drawn, "")


class Distillation(Chat):
    """The divergence of the student's distribution p of each token of an answer from the teacher's q, given
    the tokens before it: one of `DIVERGENCES`. The teacher is another run or an imported model, of any size,
    with the same tokenizer; it is not trained, and no part of the state.

    A step learns from answers of the data, or with probability `rollout.share` from answers that the student
    draws (not differentiated). Which it is and the answers are a function of (seed, step, place in the batch)
    and the parameters. Evaluations measure the cross-entropy of the data's answers.
    Source: Hinton et al. 2015; Agarwal et al. 2024 (GKD), algorithm 1.
    """

    Config = DistillationConfig

    def __init__(self, config: DistillationConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(config, tokenizer)
        self._placed: Params | None = None
        if config.teacher:
            data: Any = self.data
            data.reference_identity = functools.cache(self._identity)
        if config.rollout.share:
            self.prompts: Any = PromptData(config.data, self.data.tokenizer)
            self.prompts.rollout = config.rollout
            self.prompts.rows = functools.cache(self.prompts.rows)  # type: ignore[method-assign]

    @property
    def around(self) -> Any:  # type: ignore[override]
        """The train step that hands the teacher on; None without one."""
        return (lambda run, step: TaughtStep(self, run, step)) if self.config.teacher else None

    def train_data(self) -> Any:
        """Packed conversations, or with `rollout.share` the prompts of conversations, each in a row."""
        if self.config.teacher:
            _ = self.teacher  # its errors come before anything is written
        if not self.config.rollout.share:
            return super().train_data()
        size = self.batch_size(repeat=True)
        order: Any = {"shuffle": True, "repeat": True, "needed": rows_here(size)}
        return self.prompts.loader("train", size, seed=self.config.seed, **order)

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """See `Experiment`."""
        data = self.prompts if self.config.rollout.share else self.data
        shapes = {name: (self.batch_size(repeat=True), *x.shape[1:]) for name, x in data.blank().items()}
        return {k: jax.ShapeDtypeStruct(shape, data.blank()[k].dtype) for k, shape in shapes.items()}

    def data_lines(self) -> list[str]:
        """The data and the teacher."""
        c, rows = self.config, self.train_data().rows
        lines = [f"{len(rows):,} training prompts"] if c.rollout.share else super().data_lines()
        sizes = [sum(x.size for x in jax.tree.leaves(self.teacher[1]))] if c.teacher else []
        lines += [f"teacher: {c.teacher}, {size:,} parameters" for size in sizes]
        return lines if c.teacher else [*lines, "no teacher: the answers themselves are learned"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """With a teacher in training: `loss`, the divergence in nats per token times T^2, and `nll` of the
        tokens; else as for conversations."""
        if not (train and self.config.teacher):
            return super().loss(params, batch, rng, train)
        c, vocab_size, (model, placed) = self.config.loss, self.model.vocab_size, self.teacher
        teacher = placed if self._placed is None else self._placed
        x_btd, sown = self.hidden(params, batch, train=train, rngs={"dropout": rng}, mutable="terms")
        inputs = {"segments_bt": batch["segments"], "positions_bt": batch["positions"], "method": "hidden"}
        y_bte = jax.lax.stop_gradient(model.apply({"params": teacher}, batch["tokens"], **inputs))

        def log_p(model: Any, params: Params, x_btd: jax.Array) -> jax.Array:
            logits_btv = model.apply({"params": params}, x_btd, method="unembed")[..., :vocab_size]
            return jax.nn.log_softmax(logits_btv.astype(jnp.float32) / c.temperature)

        def head(both_btf: jax.Array, targets_bt: jax.Array) -> tuple[jax.Array, ...]:
            x_btd, y_bte = jnp.split(both_btf, [width], axis=-1)
            log_p_btv, log_q_btv = log_p(self.model, params, x_btd), log_p(model, teacher, y_bte)
            nll_bt = -jnp.take_along_axis(log_p_btv, targets_bt[..., None], axis=-1)[..., 0]
            return DIVERGENCES[c.divergence](log_p_btv, log_q_btv, c.beta), nll_bt

        width, both_btf = x_btd.shape[-1], jnp.concatenate([x_btd, y_bte.astype(x_btd.dtype)], axis=-1)
        loss_bt, nll_bt = chunked(head, both_btf, batch["targets"], c.chunk_size)
        terms = {"loss": c.temperature**2 * loss_bt, "nll": jax.lax.stop_gradient(nll_bt)}
        sums = {name: Sum.of(value_bt, batch["weights"]) for name, value_bt in terms.items()}
        return sums | model_terms(sown, len(batch["tokens"]), {})

    @contextlib.contextmanager
    def taught_by(self, teacher: Params) -> Iterator[None]:
        """`loss` with these parameters of the teacher, which are arguments of the program that is traced."""
        self._placed = teacher
        try:
            yield
        finally:
            self._placed = None

    @functools.cached_property
    def teacher(self) -> tuple[Any, Params]:
        """The teacher's model and parameters, on several devices divided as the student's.

        Raises:
          UserError: there is no such run, or its tokenizer, model or longest text does not fit the student's.
        """
        c = self.config
        if self.origin is None:
            problem = f"{c.teacher} is not read by a command that reads no data"
            raise UserError(f"config.teacher: {problem}; with --config.teacher='' it is of the student alone")
        try:
            origin = self.origin(c.teacher)
        except UserError as error:
            raise UserError(str(error).replace("initialize_from", "teacher", 1)) from None
        model = self._checked(origin).build(self.data.tokenizer.vocab_size)
        run = Run(self, c, self.data.folder / "references" / "no run")
        # Not in the run's context, which cannot be entered where a program is being traced.
        tokens_11 = jnp.zeros((1, 1), jnp.int32)
        boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens_11)["params"])
        abstract = parallel.with_shardings(boxed, parallel.param_shardings(boxed, run.mesh, run.rules))
        return model, origin.read(abstract)

    def _checked(self, origin: Origin) -> Any:
        """The config of the teacher's model, in the student's type."""
        c, theirs = self.config, origin.config
        if not isinstance(theirs, LanguageModelingConfig):
            raise UserError(f"config.teacher: {c.teacher}: expected a run of a language model")
        if (most := theirs.model.max_length) < (length := c.data.sequence_length):
            raise UserError(
                f"config.teacher: {c.teacher} reads {most} tokens; data.sequence_length is {length}"
            )
        file = RunFolder(origin.name).tokenizer
        imported: Any = None if isinstance(origin, Checkpoint) else origin
        tokenizer = imported.stored["tokenizer"] if imported else Tokenizer.load(file)
        if tokenizer.content != (own := self.data.tokenizer).content:
            sizes = f"{tokenizer.vocab_size:,} tokens there and {own.vocab_size:,} here"
            where = Path(c.teacher.removeprefix(HUB)) / file.name if imported else file
            problem = f"{c.teacher} has another tokenizer, {sizes}"
            raise UserError(f"config.teacher: {problem}; expected its own, data.tokenizer={where}")
        return dataclasses.replace(theirs.model, dtype=c.model.dtype)

    def _identity(self) -> str:
        with Run(self, self.config, self.data.folder / "references" / "no run").placed():
            return digest(checksums(self.teacher[1]))
