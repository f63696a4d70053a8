"""BERT, the smallest of the compact models (Turc et al. 2019, "Well-read students learn better": L-2, H-128).

    python launch.py --config=configs/papers/bert_tiny.py

Cost: not measured here.
Result: not measured here.
"""

from ml_collections import ConfigDict

from configs import base
from configs.papers import bert_base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = bert_base.get_config()
    config.model.d_model = 128
    config.model.num_layers = 2
    config.model.num_heads = 2
    config.model.d_ff = 512
    return base.choose(config, preset, {"tiny": bert_base.TINY})
