"""Blocks of 32 keys that see their neighbours, the first, and one more that is drawn.

    python launch.py --config=configs/attention/blocks.py

Cost: 0.8 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.4 GB of memory.
Result: 1.881 bits per byte of validation text; 12,539 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.pattern = "blocks"
    config.model.pattern_size = 32
    return config
