"""The strided pattern of the Sparse Transformer: the last 32 keys, and every 32nd before.

    python launch.py --config=configs/attention/strided.py

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.pattern = "strided"
    config.model.pattern_size = 32
    return config
