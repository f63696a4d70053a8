"""Multi-query attention: all heads share one head of keys and values.

    python launch.py --config=configs/attention/multi_query.py

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.num_kv_heads = 1
    return config
