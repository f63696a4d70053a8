"""Multiple choice: which of several continuations of a question the model finds likeliest."""

from typing import Any

import numpy as np

from transformer.data.sources import Source, open_source
from transformer.errors import UserError
from transformer.evaluation.statistics.bootstrap import interval, interval_text, resampled
from transformer.training.experiment import Params, Put


class MultipleChoice:
    """Accuracy on the questions of a file: `accuracy`, where the answer is the choice c with the largest
    log p(c | question), and `accuracy_by_length`, with the largest log p(c | question) / |c|, |c| in
    characters.

    The file has JSON lines, {"question": "...", "choices": ["...", "..."], "answer": 0}, where the answer is
    the number of a choice, from 0, or its text. A model that continues texts reads a space between the two,
    unless one of them has white space there.
    Source: Brown et al. 2020 (GPT-3), section 2.4; Gao et al. 2021 (lm-evaluation-harness), acc and acc_norm.

    Raises:
      UserError: the experiment scores no texts; there is no such file, it has no questions, or a line of it
        is no such question or has a choice that the model cannot read.
    """

    def __init__(self, experiment: Any, put: Put, split: str, file: str) -> None:
        """The questions are the same for every split."""
        cache, self._experiment = experiment.data.config.cache_dir, experiment
        if experiment.row is None:
            raise UserError(f"evaluate.also: choices: {experiment.config.experiment} scores no texts")
        try:
            source = open_source(f"jsonl:{file}", "test", cache_dir=cache, field="question", divide=False)
        except UserError as error:
            raise UserError(f"evaluate.also: choices: {error}") from None
        self._questions = [question(source, index) for index in range(len(source))]
        if not self._questions:
            raise UserError(f"evaluate.also: choices: {file} has no questions in it")
        for index, (text, choices, _) in enumerate(self._questions):
            for number, choice in enumerate(choices):
                try:  # before training, not at its first evaluation
                    self._experiment.row(*self._pair(text, choice))
                except UserError as error:
                    raise UserError(f"{source.place(index)}: choice {number}: {error}") from None
        self._right_n2 = np.zeros((0, 2))

    def names(self, params: Params) -> list[str]:
        """The names of the results."""
        return ["accuracy", "accuracy_by_length"]

    def __call__(self, params: Params) -> dict[str, float]:
        """Both accuracies, from 0 to 1."""
        pairs = [self._pair(text, choice) for text, choices, _ in self._questions for choice in choices]
        scores = iter([score.log_likelihood for score in self._experiment.score(params, pairs)])
        right = []
        for _, choices, answer in self._questions:
            log_p = np.array([next(scores) for _ in choices])
            chosen = log_p.argmax(), (log_p / [len(choice) for choice in choices]).argmax()
            right.append([choice == answer for choice in chosen])
        self._right_n2 = np.array(right, np.float64)
        return dict(zip(self.names(params), self._right_n2.mean(axis=0).tolist(), strict=True))

    def describe(self) -> dict[str, str]:
        """The number of questions, and a bootstrap interval of each result."""
        n = len(self._right_n2)
        shares = resampled(self._right_n2) / max(n, 1)
        ends = {name: interval(shares[:, i]) for i, name in enumerate(self.names(None))}
        intervals = {name: interval_text(bounds, f"{n:,} questions") for name, bounds in ends.items()}
        chance = np.mean([1 / len(choices) for _, choices, _ in self._questions])
        return {"measured": f"{n:,} questions; by chance {chance:.3f}"} | intervals

    def _pair(self, text: str, choice: str) -> tuple[str, str]:
        """The text and its continuation, as the experiment scores them."""
        return text, joined(text, choice) if self._experiment.continues else choice


def joined(text: str, choice: str) -> str:
    """The choice as a continuation of the text: after a space, unless one of them has white space there."""
    return choice if not text or text[-1].isspace() or choice[0].isspace() else f" {choice}"


def question(source: Source, index: int) -> tuple[str, list[str], int]:
    """The text of a question, its choices, and the number of the right one.

    Raises:
      UserError: the record is not a question; the message names its place.
    """
    record = source[index]
    choices: Any = record.get("choices")
    answer = record.get("answer")
    texts = isinstance(choices, list) and all(isinstance(text, str) and text.strip() for text in choices)
    if not texts or len(choices) < 2 or len({*choices}) < len(choices):
        expected = "expected a list of two or more different texts"
        raise UserError(f"{source.place(index)}: choices {choices!r}; {expected}")
    number = choices.index(answer) if answer in choices else answer
    if type(number) is not int or not 0 <= number < len(choices):
        expected = f"the number of a choice, 0 to {len(choices) - 1}, or its text"
        raise UserError(f"{source.place(index)}: answer {answer!r}; expected {expected}")
    return record["question"], choices, number
