"""The original Transformer, big model, on WMT 2014 English-German (Vaswani et al. 2017, tables 2 and 3).

    python launch.py --config=configs/papers/vaswani_big.py

Differences from the base model: width, heads, dropout and three times the steps (table 3), and 20 averaged
checkpoints (section 6.1).

Cost: not measured here; the paper took 3.5 days on 8 NVIDIA P100.
Result: not measured here; the paper reports 28.4 BLEU on newstest2014.
"""

from ml_collections import ConfigDict

from configs import base
from configs.papers import vaswani_base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = vaswani_base.get_config()
    config.model.d_model = 1024
    config.model.num_heads = 16
    config.model.d_ff = 4096
    config.model.embedding_dropout = 0.3
    config.model.dropout = 0.3
    config.optimizer.learning_rate = (1024 * 4000) ** -0.5
    config.train.steps = 300_000
    config.train.keep_last = 20
    config.train.average_last = 20
    return base.choose(config, preset, {"tiny": base.TINY_PAIRS})
