"""Word vectors of Python's standard library, or of any text, by skip-grams with negative sampling.

    python launch.py --config=configs/word_embedding.py

Cost: to be measured
Result: to be measured
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.word_embedding()
    config.data.document = "line"
    config.data.vocab_size = 30000
    config.data.sequence_length = 128
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 0.005
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0
    config.optimizer.final_fraction = 0.0
    config.train.steps = 2500
    config.train.batch_size = 64
    return base.choose(config, preset, {"tiny": TINY})


TINY = {
    "model": {"d_model": 8},
    "data": {"vocab_size": 300, "sequence_length": 32},
    "optimizer": {"warmup_steps": 1, "decay_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1, "checkpoint_every": 0},
}
