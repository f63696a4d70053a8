"""Log-likelihoods of given answers, by models that write text: `--mode=score`, and the same in a notebook."""

import functools
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from experiments.token_prediction import TokenPrediction
from transformer.data.escapes import unescape
from transformer.errors import UserError
from transformer.evaluation.scoring import Row, Score, scores
from transformer.training.experiment import Batch, Params
from transformer.training.token_losses import chunked, token_loss

BATCH_SIZE, CHUNK = 16, 128
"""Rows that are read together, and tokens of each whose logits are held at once."""


class ScoringText(TokenPrediction):
    """A model of p(continuation | text); a subclass says what it reads of a pair."""

    @property
    def longest(self) -> int:
        """The most tokens that the decoder reads."""
        return self.config.model.max_length

    @abstractmethod
    def row(self, text: str, continuation: str) -> Row:
        """The tokens of a pair, as the model reads and writes them.

        Raises:
          UserError: there is nothing to be scored, or it is too long for the model.
        """

    def score(self, params: Params, pairs: Iterable[tuple[str, str]]) -> Iterator[Score]:
        """For each (text, continuation) log p(continuation | text) in nats, its number of tokens, and whether
        greedy decoding would give it (as lm-evaluation-harness does; Gao et al. 2021).

        A language model reads both as one text (`transformer.evaluation.scoring.continued` on the border); of
        one that is too long the beginning is left out, and its tokens counted in `unread`. A model of pairs
        reads a source, and the score is that of the whole target, its end among the tokens.

        Raises:
          UserError: a continuation without a token, or longer than the model's longest text.
        """

        def rows() -> Iterator[Row]:
            for number, (text, continuation) in enumerate(pairs, 1):
                try:
                    yield self.row(text, continuation)
                except UserError as error:
                    raise UserError(f"pair {number}: {error}") from None

        return self.score_rows(params, rows())

    def score_rows(self, params: Params, rows: Iterable[Row]) -> Iterator[Score]:
        """The same of tokens."""
        likelihood = functools.partial(self._likelihood, params)
        return scores(likelihood, rows, batch_size=BATCH_SIZE, room=self.longest)

    @functools.cached_property
    def _likelihood(self) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
        def head(params: Params, x_bmd: jax.Array, targets_bm: jax.Array) -> tuple[jax.Array, ...]:
            logits_bmv = self.model.apply({"params": params}, x_bmd, method="unembed")
            nll_bm, _, _ = token_loss(logits_bmv, targets_bm, self.model.vocab_size)
            return -nll_bm, jnp.argmax(logits_bmv, axis=-1) == targets_bm

        @jax.jit
        def likelihood(params: Params, batch: Batch) -> tuple[jax.Array, ...]:
            x_btd = self.hidden(params, batch)
            x_bmd = jnp.take_along_axis(x_btd, batch["places"][..., None], axis=1)
            return chunked(functools.partial(head, params), x_bmd, batch["targets"], CHUNK)

        return likelihood  # type: ignore[return-value]


def score_lines(experiment: Any, params: Params, lines: Iterable[str]) -> Iterator[str]:
    """For each line TEXT, a tab, CONTINUATION (with \\n, \\r, \\t and \\\\ as in `escape`) one line: the
    log-likelihood, the number of tokens and true or false for greedy, tabs between.

    Raises:
      UserError: a run whose model gives texts no likelihood; a line of another form.
    """
    if not isinstance(experiment, ScoringText):
        name = experiment.config.experiment
        raise UserError(f"--mode=score: a run of {name} has no likelihood of a continuation")

    def pairs() -> Iterator[tuple[str, str]]:
        for number, line in enumerate(lines, 1):
            text, tab, continuation = line.partition("\t")
            if not tab or "\t" in continuation:
                raise UserError(
                    f"--prompt or --input: line {number} has {line.count(chr(9))} tabs; expected TEXT, a "
                    "tab, CONTINUATION (\\t is a tab within one of them)"
                )
            yield unescape(text), unescape(continuation)

    cut = 0
    for each in experiment.score(params, pairs()):
        cut += each.unread > 0
        yield f"{each.log_likelihood:.6f}\t{each.tokens}\t{str(each.greedy).lower()}"
    if cut:
        print(f"{cut} texts are longer than the model reads: a part of each is left out", file=sys.stderr)
