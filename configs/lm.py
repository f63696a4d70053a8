"""A causal language model of Python source text: the standard library's, which is wherever Python is.

    python launch.py --config=configs/lm.py

Cost: 0 minutes on two CPU cores, 0 GB of memory.
Result: 0.00 bits per byte on validation text that gzip -9 brings to 1.89.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.language_modeling()
    config.optimizer.schedule = "wsd"
    config.optimizer.decay_steps = 300
    config.optimizer.learning_rate = 2e-3
    config.train.evaluate_every = 250
    config.train.checkpoint_every = 250
    return base.choose(config, preset, {"tiny": TINY})


TINY = {
    "model": {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64},
    "data": {"tokenizer": "bytes", "sequence_length": 32},
    "optimizer": {"warmup_steps": 1, "decay_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1, "checkpoint_every": 0},
    "sample": {"max_new_tokens": 8},
}
