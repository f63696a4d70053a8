"""A language model with a context of 16,384 tokens: blockwise attention, rematerialisation, logits in chunks.

    python launch.py --config=configs/lm_long.py

Cost: 12 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22, 21.6 s a step; 3.0 GB of memory.
Result: 2.446 bits per byte of validation text after 30 steps, too few to learn much (gzip -9: 1.944);
--config.train.steps gives it more.
"""

from ml_collections import ConfigDict

from configs import base, lm


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("language_modeling")
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.max_length = 16384
    config.model.scan_layers = True
    config.model.remat = "full"
    config.data.sequence_length = 16384
    config.loss.chunk_size = 1024
    config.optimizer.warmup_steps = 5
    config.train.steps = 30
    config.train.batch_size = 1
    config.train.checkpoint_every = 10
    config.sample.prompt = "def fib("
    return base.choose(config, preset, {"tiny": lm.TINY | {"loss": {"chunk_size": 16}}})
