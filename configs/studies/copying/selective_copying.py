"""Selective copying: symbols among blanks, written in their order (Gu and Dao 2023, "Mamba").

    python launch.py --config=configs/studies/copying/selective_copying.py --config.model.mixer=mamba2

`accuracy` is the share of symbols that are most probable. The preset `published` has the length of the paper,
4,096. Details: docs/study_notes.md, "Recall".

Cost: not measured.
Result: not measured.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, one with rows as long as published, or its `tiny` version for smoke tests."""
    config = base.defaults("algorithmic")
    config.model.d_model = 64
    config.model.num_layers = 2
    config.model.num_heads = 2
    config.model.feed_forward = "none"
    config.model.max_length = 4112
    config.model.vocab_multiple = 1
    config.data.source = "selective_copying"
    config.data.arguments = {"length": 128, "symbols": 16}
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.schedule = "constant"
    config.train.steps = 1200
    config.train.batch_size = 64
    config.train.evaluate_every = 200
    published: dict[str, dict] = {"data": {"arguments": {"length": 4096}}}
    return base.choose(config, preset, {"published": published, "tiny": TINY})


TINY = {
    "model": {"d_model": 16, "num_heads": 2},
    "data": {"arguments": {"vocab_size": 6, "length": 8, "symbols": 2}, "evaluated_rows": 32},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0},
}
