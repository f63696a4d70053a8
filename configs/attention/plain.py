"""Self-attention without parameters: each token a mean of those it resembles.

    python launch.py --config=configs/attention/plain.py

Cost: 0.6 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.5 GB of memory.
Result: 1.956 bits per byte of validation text; 21,932 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.attention = "plain"
    config.model.position = "none"
    return config
