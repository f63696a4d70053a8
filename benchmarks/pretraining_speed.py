"""The speed of BERT pre-training with both losses, in tokens/s.

    python -m benchmarks.pretraining_speed [--peer] [--cases base-float32 base-bfloat16] [--repeats 5]

12 layers, d_model 768, 12 heads, vocabulary 30522, 8 rows of 128 tokens, 15 % of them masked, dropout 0.1,
AdamW. `--peer` adds `BertForPreTraining` of Hugging Face transformers on PyTorch in eager mode (`pip install
torch transformers`), which computes the logits of all tokens; ours computes those of masked tokens only.
"""

import dataclasses
import math
import statistics
import time

import numpy as np

from benchmarks import common
from benchmarks.common import Contestant

LAYERS, D, HEADS, FF, VOCAB, LENGTH, BATCH = 12, 768, 12, 3072, 30522, 128, 8
MASKED = round(0.15 * LENGTH)
MASK = 103
CASES = {"base-float32": "float32", "base-bfloat16": "bfloat16"}
WARM_UP = 3


def batch() -> dict[str, np.ndarray]:
    """Random pairs of texts with masked tokens, the same for every contestant."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1000, VOCAB, (BATCH, LENGTH)).astype(np.int32)
    places = np.sort(np.stack([rng.permutation(LENGTH)[:MASKED] for _ in range(BATCH)])).astype(np.int32)
    targets = np.take_along_axis(tokens, places, axis=1)
    np.put_along_axis(tokens, places, MASK, axis=1)
    ones = np.ones((BATCH, LENGTH), np.int32)
    return {
        "tokens": tokens,
        "segments": ones,
        "positions": np.cumsum(ones, axis=1, dtype=np.int32) - 1,
        "types": (np.arange(LENGTH) >= LENGTH // 2).astype(np.int32) * ones,
        "places": places,
        "targets": targets,
        "guessed": np.ones((BATCH, MASKED), np.float32),
        "labels": rng.integers(0, 2, (BATCH, 1)).astype(np.int32),
        "weights": np.ones((BATCH, 1), np.float32),
    }


def ours(dtype: str):
    import jax
    import optax
    from flax import linen as nn

    from experiments.masked_lm import MaskedLanguageModeling
    from transformer.models.encoder import HeadConfig
    from transformer.models.masked_lm import MaskedLanguageModel
    from transformer.training.losses.token_losses import LossConfig
    from transformer.training.state import State
    from transformer.training.step import make_train_step

    @dataclasses.dataclass
    class Data:
        next_sentence = True

    @dataclasses.dataclass
    class Config:
        data = Data()
        loss = LossConfig()

    class Objective(MaskedLanguageModeling):
        """The loss of the experiment, without its data."""

        def __init__(self) -> None:
            self.config = Config()  # type: ignore[assignment]
            model = HeadConfig(
                norm="layer",
                d_model=D,
                num_layers=LAYERS,
                num_heads=HEADS,
                d_ff=FF,
                norm_placement="post",
                norm_epsilon=1e-12,
                position="learned",
                max_length=512,
                use_bias=True,
                embedding_norm=True,
                embedding_dropout=0.1,
                attention_dropout=0.1,
                dropout=0.1,
                dtype=dtype,  # type: ignore[arg-type]
            )
            self.model = MaskedLanguageModel(model, VOCAB)

    objective, optimizer = Objective(), optax.adamw(1e-4, weight_decay=0.01)
    params = jax.jit(lambda: nn.meta.unbox(objective.init(jax.random.key(0))))()
    state = State.create(params, optimizer, ema=False)
    start, inputs = time.perf_counter(), jax.tree.map(jax.numpy.asarray, batch())
    step = jax.jit(make_train_step(objective, optimizer, seed=0), donate_argnums=0)
    compiled = step.lower(state, inputs).compile()
    report = {
        "compile_s": time.perf_counter() - start,
        "program_gb": compiled.memory_analysis().temp_size_in_bytes / 2**30,
    }

    def call() -> list[float]:
        nonlocal state
        state, metrics = compiled(state, inputs)
        return [float(metrics["loss"].mean), float(metrics["next_loss"].mean)]

    return call, report


def transformers(dtype: str):
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(vocab_size=VOCAB, attn_implementation="sdpa")).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    inputs = {name: torch.from_numpy(value).long() for name, value in batch().items()}
    targets = torch.full((BATCH, LENGTH), -100).scatter(1, inputs["places"], inputs["targets"])

    def call() -> list[float]:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            outputs = model(input_ids=inputs["tokens"], token_type_ids=inputs["types"])
        masked = torch.nn.functional.cross_entropy(
            outputs.prediction_logits.float().flatten(0, 1), targets.flatten()
        )
        follows = torch.nn.functional.cross_entropy(
            outputs.seq_relationship_logits.float(), inputs["labels"][:, 0]
        )
        (masked + follows).backward()
        optimizer.step()
        return [masked.item(), follows.item()]

    return call, {"compile_s": 0.0, "program_gb": float("nan")}


CONTESTANTS = {"ours": ours, "transformers": transformers}


def work(name: str, case: str) -> None:
    call, report = CONTESTANTS[name](CASES[case])
    common.serve(call, losses=[call() for _ in range(WARM_UP)], **report)


def flops() -> float:
    """FLOPs of a step that computes the logits of masked tokens only."""
    blocks = 12 * LAYERS * D**2 * LENGTH + 2 * LAYERS * D * LENGTH**2
    return 6 * BATCH * (blocks + (VOCAB * D + D**2) * MASKED)


def row(case: str, name: str, contestant: Contestant, first: Contestant, peak: float) -> dict:
    report, seconds = contestant.report, statistics.median(contestant.seconds)
    (masked, follows), last = report["losses"][0], report["losses"][-1]
    if not (abs(masked - math.log(VOCAB)) < 1 and abs(follows - math.log(2)) < 0.5 and last[0] < masked):
        raise SystemExit(f"{name} {case}: losses {report['losses']} do not start at chance and fall")
    return {
        "case": case,
        "who": name,
        "tokens/s": f"{BATCH * LENGTH / seconds:,.0f}",
        "best": f"{BATCH * LENGTH / min(contestant.seconds):,.0f}",
        "of ceiling": f"{flops() / seconds / peak:.0%}",
        "ours is faster": f"{common.ratio(first, contestant):.2f}x",
        "memory GB": f"{report['memory_gb']:.2f}",
        "of it program GB": common.gigabytes(report["program_gb"]),
        "compile s": f"{report['compile_s']:.1f}",
        "losses after 3 steps": ", ".join(f"{loss:.4f}" for loss in last),
    }


if __name__ == "__main__":
    common.contest(
        "benchmarks.pretraining_speed",
        __doc__,
        list(CASES),
        CONTESTANTS,
        work,
        row,
        measure=lambda case: common.ceiling(CASES[case]),
    )
