"""Layers with a window of 64 keys and rotary positions, and every other layer full, without positions.

    python launch.py --config=configs/attention/local_and_full.py

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
    config.model.full_every = 2
    config.model.full_position = "none"
    return config
