"""Multi-head latent attention: keys and values of all heads from one short vector a token.

    python launch.py --config=configs/attention/latent.py

Cost: 0.9 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.6 GB of memory.
Result: 1.966 bits per byte of validation text; 13,406 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.attention = "latent"
    return config
