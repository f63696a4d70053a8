"""Sums of two numbers below 100, learned from their answers; the start of grpo_problems.

    python launch.py --config=configs/studies/rl/supervised_problems.py

Other problems: --config.data.source=problems:countdown, or sorting or listops, which were not
measured. What it is compared with: docs/reinforcement_learning.md.

Cost: 25 to 46 s of processor time on one of 2 cores of an AMD EPYC shared with other work, 2026-11-29.
Result: 25 %, 6 % and 35 % of held-out sums right with seeds 0, 1, 2.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("chat")
    config.model.d_model = 64
    config.model.num_layers = 2
    config.model.d_ff = 256
    config.model.max_length = 40
    config.data.source = "problems:addition,2"
    config.data.messages_field = "prompt,answer"
    config.data.tokenizer = "characters"
    config.data.sequence_length = 40
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.schedule = "constant"
    config.optimizer.warmup_steps = 20
    config.train.steps = 500
    config.train.batch_size = 32
    config.evaluate.also = "answers:exact"
    config.sample.prompt = "47+85"
    config.sample.temperature = 0.0
    config.sample.max_new_tokens = 4
    return base.choose(config, preset, {"tiny": TINY})


TINY: dict[str, dict] = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_batches": 1},
    "sample": {"max_new_tokens": 4},
}
"""Keys for smoke tests: seconds of training."""
