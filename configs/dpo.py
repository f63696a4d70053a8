"""Direct preference optimisation (DPO) of a model that answers questions: short answers are better than long
ones, for questions about functions of Python's standard library.

    python launch.py --config=configs/dpo.py --config.initialize_from=runs/finetune_chat
    python launch.py --workdir=runs/dpo --mode=predict --prompt='What does loads(s) of json do?'

The run in `initialize_from` is also the reference. Your own preferences are JSON lines (or Parquet),
{"prompt": "...", "chosen": "...", "rejected": "..."}, where a prompt may be messages, and an answer a
conversation that ends with it: --config.data.source=jsonl:PATH.

Cost: 79 s of processor time on 2 cores, for the small model of docs/study_notes.md.
Result: sampled answers of 237 characters in the mean, 278 before, with that model.
"""

from ml_collections import ConfigDict

from configs import base, finetune_chat


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("dpo")
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup_steps = 10
    config.train.steps = 60
    config.train.evaluate_every = 30
    config.sample.prompt = "What does loads(s) of json do?"
    config.sample.temperature = 0.0
    return base.choose(config, preset, {"tiny": finetune_chat.TINY})
