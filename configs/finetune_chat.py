"""Fine-tuning of a language model on conversations; the loss is that of the answers alone.

    python launch.py --config=configs/lm.py
    python launch.py --config=configs/finetune_chat.py --config.initialize_from=runs/lm
    python launch.py --workdir=runs/finetune_chat --mode=predict --prompt='What does loads(s) of json do?'

By default questions about functions of Python's standard library. Your own data, and LoRA: docs/chat.md.

Cost: 88 s of processor time on 2 cores, for the small model of docs/study_notes.md.
Result: 4.65 nats per token of held-out answers, 5.14 before, with that model.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("chat")
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup_steps = 10
    config.train.steps = 150
    config.train.evaluate_every = 50
    config.sample.prompt = "What does loads(s) of json do?"
    config.sample.temperature = 0.0
    return base.choose(config, preset, {"tiny": TINY})


TINY: dict[str, dict] = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64, "max_length": 512},
    "data": {"tokenizer": "bytes", "sequence_length": 256},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1, "checkpoint_every": 0},
    "sample": {"max_new_tokens": 8},
}
"""Keys for smoke tests: seconds of training."""
