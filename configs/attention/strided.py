"""The strided pattern of the Sparse Transformer: the last 32 keys, and every 32nd before.

    python launch.py --config=configs/attention/strided.py

Cost: 0.8 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.3 GB of memory.
Result: 1.846 bits per byte of validation text; 13,458 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.pattern = "strided"
    config.model.pattern_size = 32
    return config
