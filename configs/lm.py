"""A causal language model of the source of Python's standard library, which comes with every Python.

    python launch.py --config=configs/lm.py

Cost: under 3 min on 2 cores of an AMD EPYC with AVX-512, 2026-11-22; 5 min 30 s with AVX2 and other work on
them, 2026-11-21; 1.2 GB of memory.
Result: 1.44 bits per byte of validation text (gzip -9: 1.94, xz -9e: 1.61).
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("language_modeling")
    config.model.d_model = 192
    config.model.d_ff = 768
    config.optimizer.warmup_steps = 20
    config.train.steps = 600
    config.train.batch_size = 8
    config.train.checkpoint_every = 200
    config.train.sample_every = 200
    config.sample.prompt = "def fib("
    return base.choose(config, preset, {"tiny": TINY})


TINY: dict[str, dict] = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64},
    "data": {"tokenizer": "bytes", "sequence_length": 32},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1, "checkpoint_every": 0},
    "sample": {"max_new_tokens": 8},
}
