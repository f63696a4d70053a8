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


class Sampling:
    """The base of evaluators that draw answers as the group `sample` of a config says, so that
    `--mode=evaluate` takes its keys."""


class MeanReward(Sampling):
    """`reward`, the mean over records and the n = `sample.num_samples` answers to each, drawn as the group
    `sample` says; `loss`, the same with a minus; for n above 1 `best`, the mean over records of the largest
    reward of their answers, which is pass@n if rewards are 0 and 1 (Chen et al. 2021, section 2.1).

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
        self._columns = ["reward", "best"][: experiment.config.sample.num_samples]
        self._rewards_nc = np.zeros((0, len(self._columns)))

    def names(self, params: Params) -> list[str]:
        """The names of the results."""
        return [*self._columns, "loss"]

    def __call__(self, params: Params) -> dict[str, float]:
        """The results of the records of `train.evaluate_batches`, if that is set, else of all."""
        e, source = self._experiment, self._experiment.data.source(self._split)
        most = e.config.train.evaluate_batches * e.batch_size() or len(source)
        texts = (json.dumps(source.opening(index)) for index in range(min(most, len(source))))
        rewards_ns = [
            [reward_of(self._name, source, index, answer) for answer in answers]
            for index, answers in enumerate(e.predict(params, texts, e.config.seed))
        ]
        both_nc = np.array([(np.mean(rewards_s), max(rewards_s)) for rewards_s in rewards_ns])
        self._rewards_nc = both_nc[:, : len(self._columns)]
        means = dict(zip(self._columns, self._rewards_nc.mean(axis=0).tolist(), strict=True))
        return means | {"loss": 0.0 - means["reward"]}

    def describe(self) -> Mapping[str, str]:
        """The number of prompts, and bootstrap intervals of the means."""
        n = len(self._rewards_nc)
        means_mc = resampled(self._rewards_nc) / max(n, 1)
        texts = {
            name: interval_text(interval(means_m), f"{n:,} prompts")
            for name, means_m in zip(self._columns, means_mc.T, strict=True)
        }
        return {"measured": f"{n:,} prompts", **texts}
