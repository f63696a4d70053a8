"""Self-attention without parameters: each token a mean of those it resembles.

    python launch.py --config=configs/attention/plain.py

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.attention = "plain"
    config.model.position = "none"
    return config
