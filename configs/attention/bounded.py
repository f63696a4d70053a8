"""Normalised queries and keys, scores within (-20, 20), and a sink in each head.

    python launch.py --config=configs/attention/bounded.py

Cost: 0.9 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 2.2 GB of memory.
Result: 1.919 bits per byte of validation text; 13,199 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.qk_norm = True
    config.model.soft_cap = 20.0
    config.model.sinks = True
    return config
