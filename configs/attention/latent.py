"""Multi-head latent attention: keys and values of all heads from one short vector a token.

    python launch.py --config=configs/attention/latent.py

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs.attention import multi_head


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = multi_head.get_config(preset)
    config.model.attention = "latent"
    return config
