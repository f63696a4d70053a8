"""Direct preference optimisation: make better answers likelier than worse ones, relative to a reference."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.chat import Chat, ChatConfig
from transformer.config import NonnegativeFloat, OneOf, PositiveFloat, to_values
from transformer.data.cache.disk_cache import build_once, digest, is_made, load_array
from transformer.data.chat.preferences import PreferenceData, PreferenceDataConfig, PreferenceRows
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.distributed import gather_texts
from transformer.evaluation.terms_by_row import replicated
from transformer.training.checkpoints.checksums import checksums
from transformer.training.experiment import Batch, Params
from transformer.training.losses.token_losses import LogitsConfig, loss_of_states
from transformer.training.metrics import Sum
from transformer.training.parallel import rows_here
from transformer.training.run import Run


@dataclass(frozen=True)
class PreferenceLossConfig(LogitsConfig):
    """The loss of each pair."""

    beta: PositiveFloat = 0.1  # how much a difference from the reference counts
    # dpo; dpo_norm: of log-likelihoods per token; simpo: per token, without a reference
    kind: Annotated[str, OneOf(("dpo", "dpo_norm", "simpo"))] = "dpo"
    gamma: NonnegativeFloat = 0.0  # the margin m that is asked for: -log sigmoid(m - gamma)


@dataclass(frozen=True)
class PreferenceConfig(ChatConfig):
    """The config of a run: one group of keys for each part."""

    data: PreferenceDataConfig  # type: ignore[assignment]
    loss: PreferenceLossConfig  # type: ignore[assignment]


class PreferenceOptimization(Chat):
    """-log sigmoid(m), m = beta (log p(y_w | x) / q(y_w | x) - log p(y_l | x) / q(y_l | x)), for the better
    answer y_w and the worse one y_l to x; p is the model and q the reference, the model as training starts:
    with `initialize_from` that run's, before any adapters of this one. Its part is computed once and cached,
    and with `train.until.window` once for each window: the reference attends to what the model attends to.
    With `loss.kind` "dpo_norm" log-likelihoods are divided by the tokens of their answer; with "simpo" too,
    and q is left out: m = beta (log p(y_w | x) / |y_w| - log p(y_l | x) / |y_l|).

    Source: Rafailov et al. 2023 (DPO), equation 7; Meng et al. 2024 (SimPO), equation 6.
    """

    Config = PreferenceConfig
    Data = PreferenceData
    measures = None  # type: ignore[assignment]
    perplexity = False

    def __init__(self, config: PreferenceConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(config, tokenizer)
        if config.loss.kind != "simpo":
            # Once for each split: later calls, of one process alone, wait for no others.
            self.data.reference = functools.cache(self.reference)
            self.data.reference_identity = lambda: self._identity

    def data_lines(self) -> list[str]:
        """As for conversations, and how many pairs teach nothing."""
        equal = self.data.equal_pairs("train")
        return super().data_lines() + (
            [f"{equal:,} records have two equal answers, from which nothing is learned"] if equal else []
        )

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per pair; `accuracy`, the share of m > 0; `margin`, the mean of m; `chosen` and
        `rejected`, its two terms."""
        c = self.config.loss
        log_p_bk2 = self._log_likelihoods(params, batch, train=train, rngs={"dropout": rng})
        # That of SimPO is 0 (see `PreferenceRows`).
        reward_bk2 = c.beta * (log_p_bk2 - batch["reference"])
        if c.kind != "dpo":
            reward_bk2 /= jnp.maximum(self._by_answer(batch["answers"], batch), 1.0)
        margin_bk, weights_bk = reward_bk2[..., 0] - reward_bk2[..., 1], batch["weights"]
        terms = {"accuracy": margin_bk > 0, "margin": margin_bk}
        terms |= {"chosen": reward_bk2[..., 0], "rejected": reward_bk2[..., 1]}
        reports = {name: Sum.of(value, weights_bk) for name, value in jax.lax.stop_gradient(terms).items()}
        return {"loss": Sum.of(-jax.nn.log_sigmoid(margin_bk - c.gamma), weights_bk)} | reports

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of pairs."""
        return {"loss": jnp.sum(batch["weights"])}

    def staged(self, rows: PreferenceRows) -> PreferenceRows:
        """The rows with the log-likelihoods by the reference as the stage changes it."""
        return rows.referring_to(self.data.reference("train")) if self.data.reference else rows

    def _log_likelihoods(self, params: Params, batch: Batch, **options: Any) -> jax.Array:
        """log p of both answers of each pair, (b, k, 2) float32: sums over their tokens."""
        x_btd = self.hidden(params, batch, **options)
        unembed = functools.partial(self.model.apply, {"params": params}, method="unembed")
        vocab_size = self.model.vocab_size
        nll_bt, *_ = loss_of_states(unembed, x_btd, batch["targets"], self.config.loss, vocab_size)
        return self._by_answer(-nll_bt * batch["answers"], batch)

    def _by_answer(self, values_bt: jax.Array, batch: Batch) -> jax.Array:
        """The sums of values over both answers of each pair, (b, k, 2)."""
        b, k, _ = batch["reference"].shape
        add = functools.partial(jax.ops.segment_sum, num_segments=2 * k + 1)
        return jax.vmap(add)(values_bt, batch["segments"])[:, 1:].reshape(b, k, 2)

    def reference(self, split: str) -> np.ndarray:
        """The log-likelihoods (n, 2) by the reference of both answers of the records of a split. With several
        processes all must call this."""
        rows = self.data.pairs(split)
        key = digest(self._identity, to_values(self.config.model), rows.identity)
        folder, measured = self.data.folder / "references" / key, functools.cache(self._of_reference)
        if jax.process_count() > 1 and not all(gather_texts("it is there" if is_made(folder) else "")):
            measured(rows)  # by all of them, before one makes the folder and the others wait

        def build(new: Path) -> None:
            np.save(new / "log_likelihoods.npy", measured(rows))

        return load_array(build_once(folder, build) / "log_likelihoods.npy")

    def _of_reference(self, rows: PreferenceRows) -> np.ndarray:
        run, params = self._initial()
        found_n2 = np.zeros((len(rows.sequences) // 2, 2), np.float32)
        with run.placed():
            measure = jax.jit(lambda *inputs: replicated(self._log_likelihoods(*inputs)))
            for first in range(0, len(rows), size := self.batch_size()):
                indices = np.arange(first, first + size)
                indices[indices >= len(rows)] = -1  # padding
                batch, numbers_bk = rows.batch(indices[rows_here(size)]), rows.pairs(indices)
                log_p_bk2 = np.asarray(measure(params, run.put(batch)))
                found_n2[numbers_bk[numbers_bk >= 0]] = log_p_bk2[numbers_bk >= 0]
        return found_n2

    @functools.cached_property
    def _identity(self) -> str:
        run, params = self._initial()
        with run.placed():  # also where the caller computes on other devices
            return digest(checksums(params))

    def _initial(self) -> tuple[Run, Params]:
        run = Run(self, self.config, self.data.folder / "references" / "no run")
        with run.placed():
            return run, run.first_state().params
