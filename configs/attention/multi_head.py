"""Multi-head attention with rotary positions, which the other files of this folder differ from.

    python launch.py --config=configs/attention/multi_head.py

Cost: 0.7 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.4 GB of memory.
Result: 1.910 bits per byte of validation text; 15,192 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs import base, lm


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.language_modeling()
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.norm = "rms"
    config.data.sequence_length = 512
    config.optimizer.name = "contrib.muon"
    config.optimizer.learning_rate = 0.02
    config.optimizer.warmup_steps = 20
    config.optimizer.final_fraction = 0.0
    config.train.steps = 200
    config.train.batch_size = 4
    config.sample.prompt = "def fib("
    return base.choose(config, preset, {"tiny": lm.TINY})
