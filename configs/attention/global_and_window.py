"""A window of 64 keys, and the first 4 tokens of a row for all to see.

    python launch.py --config=configs/attention/global_and_window.py

Cost: not yet measured.
Result: not yet measured.
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
