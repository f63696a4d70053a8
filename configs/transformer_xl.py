"""Transformer-XL: a language model that reads segments of text in order and attends to the cached keys and
values of earlier segments, on the source of Python's standard library or your own text.

    python launch.py --config=configs/transformer_xl.py

Cost: 3 min 17 s on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.8 GB of memory.
Result: 1.482 bits per byte of validation text, with a memory of 512 tokens; gzip -9: 1.944, xz -9e: 1.614.
"""

from ml_collections import ConfigDict

from configs import base, lm


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("transformer_xl")
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.evaluation_memory = 512
    config.data.sequence_length = 128
    config.optimizer.warmup_steps = 20
    config.train.steps = 600
    config.train.checkpoint_every = 200
    config.train.sample_every = 200
    config.sample.prompt = "def fib("
    return base.choose(config, preset, {"tiny": TINY})


TINY = lm.TINY | {
    "model": {
        "d_model": 32,
        "num_layers": 2,
        "num_heads": 2,
        "d_ff": 64,
        "memory_length": 8,
        "evaluation_memory": 16,
    }
}
"""Keys for smoke tests."""
