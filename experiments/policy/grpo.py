"""Reinforcement learning with rewards that can be checked: make answers likelier that score above their
group."""

import functools
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from experiments.chat import Chat, ChatConfig
from experiments.evaluation.mean_reward import MeanReward
from experiments.policy.estimators import ESTIMATORS, HIGHER, clipped, k3
from experiments.policy.rewards import REWARDS
from experiments.policy.rollout_step import RolloutStep
from experiments.policy.rollouts import Grouped, PromptRows, blank_rows
from transformer.config import (
    Bound,
    Bounded,
    Nonnegative,
    NonnegativeFloat,
    OneOf,
    Positive,
    PositiveFloat,
    PositiveFraction,
)
from transformer.data.cache.disk_cache import digest
from transformer.data.chat.chat import ChatData
from transformer.data.loader import HostBatch
from transformer.data.sources.base import tallied
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.training.checkpoints.checksums import checksums
from transformer.training.experiment import Batch, Params, Put
from transformer.training.hooks import Evaluator
from transformer.training.losses.logits_memory import chunked
from transformer.training.metrics import Sum
from transformer.training.run import Run


@dataclass(frozen=True)
class PolicyLossConfig(Bounded):
    """The objective of drawn tokens."""

    estimator: Annotated[str, OneOf(ESTIMATORS)] = "grpo"  # how rewards of a group become weights of tokens
    clip: PositiveFraction = 0.2  # the ratio to the drawn probability is clipped at 1 - clip
    clip_high: NonnegativeFloat = 0.0  # and at 1 + clip_high; 0: the estimator's, 0.28 of dapo, else clip
    kl: NonnegativeFloat = 0.0  # coefficient of the divergence (k3) from the model as training starts
    chunk_size: Nonnegative = 0  # tokens whose logits are in memory at once; 0: all


@dataclass(frozen=True)
class RolloutConfig(Bounded):
    """Drawing answers, and their rewards."""

    samples: Annotated[int, Bound("at least 2", 2)] = 8  # answers to each prompt, which are compared
    updates: Positive = 1  # updates from the same answers
    max_new_tokens: Positive = 64  # longest answer, with its end
    temperature: PositiveFloat = 1.0  # the policy is softmax(logits / temperature)
    reward: Annotated[str, OneOf(REWARDS)] = "exact"  # function of prompt, answer and record


@dataclass(frozen=True)
class PolicyConfig(ChatConfig):
    """The config of a run: one group of keys for each part."""

    loss: PolicyLossConfig  # type: ignore[assignment]
    rollout: RolloutConfig

    scheduled: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        r, size, length = self.rollout, self.train.batch_size, self.data.sequence_length
        if size % r.samples:
            raise UserError(f"train.batch_size: {size}; expected a multiple of rollout.samples, {r.samples}")
        if r.max_new_tokens >= length:
            raise UserError(
                f"rollout.max_new_tokens: {r.max_new_tokens} leave no token of a prompt in a row of "
                f"data.sequence_length {length}"
            )
        for key in ("dropout", "attention_dropout", "embedding_dropout"):
            if rate := vars(self.model)[key]:
                raise UserError(f"model.{key}: {rate}; answers are drawn without dropout: expected 0")


class PromptData(ChatData):
    """The prompts of a config, the messages of records before their last answer; raises as `Corpus`."""

    rollout: Any

    def rows(self, split: str) -> PromptRows:
        """The tokenised prompts of a split; `too_long` says what becomes of those that leave no room for an
        answer: their first tokens are dropped, they are left out, or an error."""
        source, most = self.source(split), self.config.sequence_length + 1 - self.rollout.max_new_tokens
        prompts = {index: self.chat.prompt(source.opening(index)) for index in range(len(source))}
        long = [index for index, tokens in prompts.items() if len(tokens) > most]
        if long and self.config.too_long == "refuse":
            size = f"{source.place(long[0])} has a prompt of {len(prompts[long[0]])} tokens"
            raise UserError(f"config.data.too_long: {size}; rollout.max_new_tokens leaves {most} of a row")
        cut = self.config.too_long == "cut"
        shorter = {i: tokens[-most:] for i, tokens in prompts.items() if cut or len(tokens) <= most}
        if not shorter:
            problem = (
                f"no prompt is left of {len(source)}: rollout.max_new_tokens leaves {most} tokens of a row"
            )
            raise UserError(f"config.data.too_long: {problem}")
        left_out = {"truncated" if cut else "too long": len(long)}
        return PromptRows(shorter, self.config.sequence_length, tallied(len(shorter), left_out))

    def loader(self, split: str, batch_size: int, *, repeat: bool = False, **options: Any) -> Grouped:
        """As for `Corpus`; of each prompt as many rows as answers are drawn."""
        groups: Any = {"samples": self.rollout.samples, "updates": self.rollout.updates}
        options |= {"workers": self.config.workers, "repeat": repeat}
        return Grouped(self.rows(split), batch_size, **options, **groups)

    def blank(self) -> HostBatch:
        """A row of padding, stacked, for its shapes; no data are read."""
        return blank_rows(1, self.config.sequence_length)


class PolicyOptimization(Chat):
    """Maximises the mean reward of drawn answers o to prompts x by a surrogate of `estimators`, minus
    kl KL(p || q), where p is the model and q the reference, the model as training starts (with
    `initialize_from` that run's).

    Each rollout draws `rollout.samples` answers to each prompt of a batch from the current parameters, and
    `rollout.updates` steps learn from it. Answers are a function of (seed, step, place in the batch) and the
    parameters; the rollout in use is the carry of the state, and so in checkpoints.
    Source: Shao et al. 2024 (GRPO); of others see `experiments.policy.estimators`.
    """

    Config = PolicyConfig
    Data = PromptData
    measures = None  # type: ignore[assignment]
    perplexity = False
    weights = ("weights", "normalizers")

    def __init__(self, config: PolicyConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(config, tokenizer)
        self.data.rollout, self.data.rows = config.rollout, functools.cache(self.data.rows)
        if config.loss.kl:
            self.data.reference_identity = functools.cache(self._identity)

    def around(self, run: Run, step: Any) -> RolloutStep:
        """The train step that draws answers before it learns from them."""
        return RolloutStep(self, run, step)

    def initial_carry(self) -> Batch:
        """A rollout without answers."""
        size = self.config.train.batch_size
        return {name: jnp.zeros((size, *x.shape[1:]), x.dtype) for name, x in self.data.blank().items()}

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, minus the objective; of all drawn tokens: `ratio`, its mean; `clipped`, the share whose
        ratio is out of bounds; `entropy` of the policy, in nats; `kl`, the mean of k3, if it counts."""
        c, drawn_bt = self.config.loss, batch["weights"] > 0
        log_p_bt, entropy_bt = self.log_probabilities(params, batch, train=train, rngs={"dropout": rng})
        # Elsewhere a ratio could overflow, and its gradient be 0 times infinity.
        log_p_bt = jnp.where(drawn_bt, log_p_bt, 0.0)
        log_ratio_bt, high = log_p_bt - batch["sampled"], c.clip_high or HIGHER.get(c.estimator, c.clip)
        loss_bt = -clipped(log_ratio_bt, batch["advantages"][:, None], c.clip, high)
        ratio_bt = jnp.exp(log_ratio_bt)
        terms = {"ratio": ratio_bt, "clipped": (ratio_bt < 1 - c.clip) | (ratio_bt > 1 + high)}
        terms["entropy"] = entropy_bt
        if c.kl:
            terms["kl"] = k3(log_p_bt, batch["reference"])
            loss_bt += c.kl * terms["kl"]
        reports = {name: Sum.of(x, drawn_bt) for name, x in jax.lax.stop_gradient(terms).items()}
        return {"loss": Sum(jnp.sum(loss_bt * batch["weights"]), jnp.sum(batch["normalizers"]))} | reports

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The sum of what the estimator divides by."""
        return {"loss": jnp.sum(batch["normalizers"])}

    def log_probabilities(self, params: Params, batch: Batch, **options: Any) -> tuple[jax.Array, jax.Array]:
        """log p of each target, and the entropy of its distribution, (b, t) float32, by the policy; `options`
        are those of `hidden`."""

        def head(x_btd: jax.Array, targets_bt: jax.Array) -> tuple[jax.Array, ...]:
            logits_btv = self.model.apply({"params": params}, x_btd, method="unembed")
            logits_btv = logits_btv[..., : self.model.vocab_size].astype(jnp.float32)
            log_p_btv = jax.nn.log_softmax(logits_btv / self.config.rollout.temperature)
            entropy_bt = -jnp.sum(jnp.exp(log_p_btv) * log_p_btv, axis=-1)
            return jnp.take_along_axis(log_p_btv, targets_bt[..., None], axis=-1)[..., 0], entropy_bt

        x_btd = self.hidden(params, batch, **options)
        log_p_bt, entropy_bt = chunked(head, x_btd, batch["targets"], self.config.loss.chunk_size)
        return log_p_bt, entropy_bt

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """`eval/reward` of answers as `sample` draws them, and those of `evaluate.also`."""
        reward = MeanReward(self, put, split, self.config.rollout.reward)
        return {"eval": reward, **self.other_evaluators(put, split)}

    def data_lines(self) -> list[str]:
        """The number of prompts."""
        return [f"{len(self.train_data().rows):,} training prompts"]  # type: ignore[attr-defined]

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The mean reward."""
        name = self.config.rollout.reward
        return [f"mean reward ({name}) of answers to prompts of validation: {measured['eval/reward']:.4f}"]

    @functools.cached_property
    def reference(self) -> Params:
        """The parameters as training starts; on several devices divided as those that are trained."""
        run = Run(self, self.config, self.data.folder / "references" / "no run")
        with run.placed():
            return run.first_state().params

    def _identity(self) -> str:
        with Run(self, self.config, self.data.folder / "references" / "no run").placed():
            return digest(checksums(self.reference))
