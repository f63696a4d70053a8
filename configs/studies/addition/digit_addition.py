"""Addition digit by digit, evaluated on numbers twice as long as those of training, by position encoding.

    python launch.py --config=configs/studies/addition/digit_addition.py --config.model.position=none

`accuracy` is the share of digits of longer sums that are most probable (Lee et al. 2023; Zhou et al. 2024).

Cost: not measured.
Result: not measured.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("algorithmic")
    config.model.d_model = 128
    config.model.num_layers = 3
    config.model.d_ff = 512
    config.model.max_length = 64
    config.model.vocab_multiple = 1
    config.data.source = "digit_addition"
    config.data.arguments = {"digits": 8, "factor": 2}
    config.optimizer.learning_rate = 0.01
    config.optimizer.warmup_steps = 50
    config.train.steps = 1200
    config.train.batch_size = 64
    config.train.evaluate_every = 200
    return base.choose(config, preset, {"tiny": TINY})


TINY = {
    "model": {"d_model": 16, "num_heads": 2, "d_ff": 32},
    "data": {"arguments": {"digits": 2}, "evaluated_rows": 32},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0},
}
