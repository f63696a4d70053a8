"""Blocks of 32 keys that see their neighbours, the first, and one more that is drawn.

    python launch.py --config=configs/attention/blocks.py

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.pattern = "blocks"
    config.model.pattern_size = 32
    return config
