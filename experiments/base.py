"""`Experiment`, the base class of objectives, with a default for everything that is optional; and
`TextObjective`, that of objectives on packed rows of text."""

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from experiments.evaluation.evaluators import named_evaluators
from transformer.errors import UserError
from transformer.evaluation.attention_weights import AttentionMap
from transformer.evaluation.likelihood import likelihood_evaluator
from transformer.evaluation.scoring import Row, Score, score_pairs
from transformer.evaluation.terms_by_row import WEIGHTS
from transformer.layers.measures import Measures
from transformer.models.transforms.reduced import reduced
from transformer.run_folder import RunFolder
from transformer.training.experiment import Batch, Batches, Objective, Params, Put
from transformer.training.hooks import Evaluator, Hook, Pictures, Samples
from transformer.training.logging.throughput import matmul_parameters, train_flops_per_token
from transformer.training.losses.token_losses import token_losses, token_weights
from transformer.training.metrics import Sum
from transformer.training.parallel import rows_here
from transformer.visualization.attention_maps import draw_attention


class Experiment(Objective, ABC):
    """One objective: a model, its data, its loss and its evaluators.

    A subclass sets `config`, `data` and `model` in its constructor, and defines `init`, `loss` and `weigh`.
    All other members have a default. Where that is None, a command that needs the member refuses the run.
    """

    Config: type
    config: Any
    data: Any
    model: Any
    # Whether terms of a row depend on all rows, so that `loss` gets the whole batch and divides its work.
    whole_batch = False
    # Names of parameters that `initialize_from` may leave newly initialised.
    heads: tuple[str, ...] = ()
    # Opens the `transformer.training.checkpoints.initialize.Origin` that a value of `initialize_from` names;
    # None: the checkpoint of the run of that name.
    origin: Callable[[str], Any] | None = None
    # `measures(norms, attention)` is a flax method interceptor that sows measurements of the layers as terms
    # of `loss`, with a method `finished(name, value)` (see `transformer.layers.measures.Measures`).
    measures: Callable[[bool, bool], Any] | None = None
    # `cut(batch, length)` cuts the rows of a batch into rows of `length` tokens, if the config's `scheduled`
    # has "sequence_length".
    cut: Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]] | None = None
    # `around(run, step)` is called in place of the train step, if a batch depends on the state.
    around: Callable[[Any, Any], Any] | None = None
    # Names of the arrays of a batch that weigh its positions or rows, in which all terms are linear; a
    # batch need not have all of them.
    weights: tuple[str, ...] = WEIGHTS
    # Whether `loss` is nats per token, so that its exponential is a perplexity.
    perplexity = False
    _noted: frozenset[str] = frozenset()

    # What training asks.

    @abstractmethod
    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""

    @abstractmethod
    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """All terms, optimised or only reported, as `Sum`s over the examples of the batch. Those that `weigh`
        does not name have no gradient: `jax.lax.stop_gradient` of the values, not of their weights."""

    @abstractmethod
    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The terms of `loss` to optimise, with their total weights in the batch."""

    def initial_carry(self) -> Any:
        """The first carry of `loss_and_carry`, if each batch continues the one before: arrays with a leading
        batch axis. None if batches are independent."""
        return None

    def loss_and_carry(
        self, params: Params, batch: Batch, carry: Any, rng: jax.Array, train: bool
    ) -> tuple[dict[str, Sum], Any]:
        """The terms of `loss` given `carry`, and the carry for the next batch."""
        return self.loss(params, batch, rng, train), carry

    @property
    def tokens_per_example(self) -> int:
        """Tokens of one row of a batch, for throughput."""
        return self.config.data.sequence_length

    @property
    def attention_products(self) -> float:
        """Multiplications of attention for one token, forward (see `layers.attention.products`); 0: they are
        neglected."""
        return 0

    def flops_per_token(self, params: Params) -> float:
        """FLOPs of training on one token, forward and backward: 6 N plus attention's part (see
        `transformer.training.logging.throughput`); `params` may be abstract."""
        matrices = matmul_parameters(params, self.config.model.expert_share)
        return train_flops_per_token(matrices, self.attention_products)

    def converted(self, origin: Any) -> Any:
        """The `Origin` with its parameters as this model has them."""
        return origin

    def train_data(self) -> Batches:
        """Shuffled rows of the training split, repeated endlessly."""
        return self.loader("train", shuffle=True, repeat=True)

    def staged(self, rows: Any) -> Any:
        """The rows of training in a stage of `train.until`, of which this is the experiment, from those of
        the run: the same, unless something in them depends on what the stage changes."""
        return rows

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Prefix of logged results -> evaluator: "eval" for the terms of `loss`, and those of
        `evaluate.also`. `split` is "train", "validation", "test", or a split of another source, "test of
        SOURCE"."""
        likelihood = likelihood_evaluator(self, self.evaluation_loader(split), put, self.perplexity)
        return {"eval": likelihood, **self.other_evaluators(put, split)}

    def other_evaluators(self, put: Put, split: str) -> dict[str, Evaluator]:
        """The evaluators that `evaluate.also` names."""
        return named_evaluators(self, put, split) if self.config.evaluate.also else {}

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Further hooks, such as samples and plots."""
        return []

    def pictures(
        self, folder: RunFolder, name: Path, values: Callable[[Params], tuple | None], draw: Any
    ) -> Pictures:
        """The hook that draws `values(params)` into the folder `name` of a run, as often as samples."""
        return Pictures(self.config.train, folder, name, values, draw)

    # The data.

    def loader(self, split: str, **order: bool) -> Any:
        """The loader of a split, with the batch size of training (`repeat`) or of evaluation, that reads the
        rows of this process; `order` are `shuffle` and `repeat` of `DataLoader`."""
        size = self.batch_size(**order)
        loader = self.data.loader(split, size, seed=self.config.seed, needed=rows_here(size), **order)
        self.note("bytes", loader.rows.why)
        return loader

    def evaluation_loader(self, split: str) -> Any:
        """The loader of one pass over a split."""
        return self.loader(split)

    def batch_size(self, repeat: bool = False, **order: bool) -> int:
        """The number of rows of a training batch (`repeat`) or an evaluation batch."""
        c = self.config
        return c.train.batch_size if repeat else c.evaluate.batch_size or c.train.batch_size

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and types of a training batch over all processes; those of the first one, where the data
        have no `blank` row."""
        blank = self.data.blank()
        rows = next(iter(self.train_data().iterate(0))) if blank is None else blank
        size = self.batch_size(repeat=True)
        return {
            name: jax.ShapeDtypeStruct((size, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))
            for name, x in rows.items()
        }

    def note(self, kind: str, text: str) -> None:
        """Prints a note on standard error, unless it is ""; only the first of each kind."""
        if text and kind not in self._noted and jax.process_index() == 0:
            tqdm.write(text, file=sys.stderr)  # above a progress bar
            self._noted |= {kind}

    # What commands ask of a trained model.

    continues = False  # whether an answer continues the text
    # `stepper(params)` is the model behind the `Stepper` protocol of decoding, if it generates.
    stepper: Callable[[Params], Any] | None = None
    # `row(text, continuation)` is the sequence by which a continuation of a text is scored; it raises
    # `UserError` if the model does not read it.
    row: Callable[[str, str], Row] | None = None
    # `states(params, text)`: the character span (start, end) of each token of a text, truncated to the
    # model's context, and the last layer's states (t, d).
    states: Callable[[Params, str], tuple[list[tuple[int, int]], np.ndarray]] | None = None
    # `predictions(params, split)` yields the lines of a table of every example of a split.
    predictions: Callable[[Params, str], Iterator[str]] | None = None
    # Whether one decoder reads prompt and answer as one text, of which either may be any text.
    is_language_model = False

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a generated text; (): only the tokenizer's end token."""
        return ()

    decoding = ""  # the config group by which texts are written, `sample` or `generate`; "": none are

    def reduced(self, params: Params) -> Params:
        """The parameters as texts are decoded with them, in the type that the config says."""
        kind = getattr(self.config, self.decoding).weights if self.decoding else "float32"
        return params if kind == "float32" else reduced(params, kind)

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """The answers to each text, as many as the config says. `first` is the number of the first text (not
        0 after an interruption): random numbers depend on (seed, number).

        Raises:
          UserError: the objective answers no texts.
        """
        raise UserError(f"--mode=predict: a run of {self.config.experiment} answers no texts")

    def score(self, params: Params, pairs: Iterable[tuple[str, str]]) -> Iterator[Score]:
        """log p(continuation | text) of each (text, continuation); what is too long to be read of a text is
        counted in `unread`. Needs `row`. Raises as `score_pairs`."""
        return score_pairs(self, params, pairs)

    def problem(self, text: str) -> str:
        """Why a text cannot be answered, or ""."""
        return ""

    def checked(self, texts: Iterable[str], first: int = 0) -> Iterator[str]:
        """The texts unchanged; raises `UserError` on one with a `problem`. `first` as for `predict`."""
        for number, text in enumerate(texts, first + 1):
            if problem := self.problem(text):
                raise UserError(f"--prompt or --input: text {number} {problem}")
            yield text

    def stream(self, params: Params, text: str, seed: int = 0) -> Iterator[str] | None:
        """A single answer, in pieces; None if answers are not written piece by piece."""
        return None

    # Lines that are printed before and after training.

    def data_lines(self) -> list[str]:
        """Facts about the data, before training."""
        return []

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The last evaluation and a baseline, after training."""
        return []

    example_mode = "predict"  # the command to try the trained model with

    def example_flags(self) -> list[str]:
        """Flags of this command; []: none."""
        return []


class TextObjective(Experiment):
    """An objective on packed rows of tokens. The model has a method `unembed`, which makes logits of the
    batch's `targets` from the states of `hidden`; `config.loss` is a `LossConfig`."""

    measures = Measures
    perplexity = True

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""
        return self.model.init(rng, jnp.zeros((1, 1), jnp.int32))["params"]

    def hidden(self, params: Params, batch: Batch, **options: Any) -> Any:
        """The last layer's states (b, t, d); `unembed` maps them to logits of the batch's `targets`.
        `options` are those of `self.model.apply`. The default is that of a decoder."""
        return self.model.apply(
            {"params": params},
            batch["tokens"],
            segments_bt=batch["segments"],
            positions_bt=batch["positions"],
            method="hidden",
            **options,
        )

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per target token (label smoothing in training only); `bits_per_byte`; `z_loss`."""
        x_btd, sown = self.hidden(params, batch, train=train, rngs={"dropout": rng}, mutable="terms")
        unembed = functools.partial(self.model.apply, {"params": params}, method="unembed")
        return token_losses(unembed, x_btd, batch, self.config.loss, self.model.vocab_size, train, sown)

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of target tokens, for the loss and the optional z-loss."""
        return token_weights(batch["weights"], self.config.loss)

    @property
    def longest(self) -> int:
        """The most tokens that the decoder reads."""
        return self.config.model.max_length

    @abstractmethod
    def sample(self, params: Params) -> str:
        """The text that is written as a sample, every `train.sample_every` steps."""

    def attended(self, params: Params) -> AttentionMap | None:
        """The attention map that is drawn beside each sample; None: none."""
        return None

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """The sample, and the attention map."""
        samples = Samples(self.config.train, folder, self.sample)
        return [samples, self.pictures(folder, folder.attention, self.attended, draw_attention)]
