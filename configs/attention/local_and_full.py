"""Layers with a window of 64 keys and rotary positions, and every other layer full, without positions.

    python launch.py --config=configs/attention/local_and_full.py

Cost: 0.7 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.4 GB of memory.
Result: 1.872 bits per byte of validation text; 15,723 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.pattern = "window"
    config.model.pattern_size = 64
    config.model.full_every = 2
    config.model.full_position = "none"
    return config
