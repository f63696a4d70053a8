"""A window of 64 keys, and the first 4 tokens of a row for all to see.

    python launch.py --config=configs/attention/global_and_window.py

Cost: 0.7 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.6 GB of memory.
Result: 1.865 bits per byte of validation text; 14,735 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.pattern = "global"
    config.model.pattern_size = 64
    config.model.pattern_extra = 4
    return config
