"""A sliding window: the 64 nearest keys of the past alone.

    python launch.py --config=configs/attention/window.py

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.pattern = "window"
    config.model.pattern_size = 64
    return config
