"""Multi-query attention: all heads share one head of keys and values.

    python launch.py --config=configs/attention/multi_query.py

Cost: 0.7 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 1.7 GB of memory.
Result: 1.954 bits per byte of validation text; 18,073 tokens/s. Beside the others: experiments/README.md.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.num_kv_heads = 1
    return config
