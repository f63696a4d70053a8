"""Rewards of a model's answers to the prompts of a split."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.policy.rewards import REWARDS, scored
from transformer.errors import UnknownMember, UserError, suggest
from transformer.evaluation.statistics.bootstrap import interval, interval_text, resampled
from transformer.training.experiment import Params, Put

if TYPE_CHECKING:
    from transformer.data.chat.dialogues import Dialogues


def reward_of(name: str, source: "Dialogues", index: int, answer: str) -> float:
    """The reward `name` of an answer to a record; raises as `scored`."""
    prompt = "\n".join(message["content"] for message in source.opening(index))
    return scored(name, prompt, answer, source.record(index), source.place(index))


class MeanReward:
    """`reward`, the mean over records and the `sample.num_samples` answers to each, drawn as the group
    `sample` says; `loss`, the same with a minus.

    Raises:
      UserError: the experiment has no conversations, or there is no such reward.
    """

    def __init__(self, experiment: Any, put: Put, split: str, name: str) -> None:
        from transformer.data.chat.chat import ChatData

        if not isinstance(experiment.data, ChatData):
            raise UserError(f"evaluate.also: answers: {experiment.config.experiment} has no conversations")
        if name not in REWARDS:
            raise UnknownMember(f"evaluate.also: answers:{name}: no such reward; {suggest(name, REWARDS)}")
        self._experiment, self._name, self._split = experiment, name, split
        self._rewards_n1 = np.zeros((0, 1))

    def names(self, params: Params) -> list[str]:
        """The names of the results."""
        return ["reward", "loss"]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"reward": ..., "loss": ...} of the records of `train.evaluate_batches`, if that is set."""
        e, source = self._experiment, self._experiment.data.source(self._split)
        most = e.config.train.evaluate_batches * e.batch_size() or len(source)
        texts = (json.dumps(source.opening(index)) for index in range(min(most, len(source))))
        rewards = [
            np.mean([reward_of(self._name, source, index, answer) for answer in answers])
            for index, answers in enumerate(e.predict(params, texts, e.config.seed))
        ]
        self._rewards_n1 = np.array(rewards)[:, None]
        mean = float(np.mean(rewards))
        return {"reward": mean, "loss": 0.0 - mean}

    def describe(self) -> Mapping[str, str]:
        """The number of prompts, and a bootstrap interval of the mean."""
        n = len(self._rewards_n1)
        bounds = interval(resampled(self._rewards_n1)[:, 0] / max(n, 1))
        return {"measured": f"{n:,} prompts", "reward": interval_text(bounds, f"{n:,} prompts")}
