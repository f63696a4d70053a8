"""State tracking: products of random permutations, in rows 8 times as long as those of training.

    python launch.py --config=configs/studies/state_tracking/state_tracking.py --workdir=runs/parity
    python launch.py --config=configs/studies/state_tracking/state_tracking.py:s5 --workdir=runs/s5

`accuracy` is that of products behind the trained length. Parity is the group of two points; `:s5` has all
permutations of five (Merrill et al. 2024; Grazzi et al. 2025). Try `--config.model.mixer=...` and
`--config.model.negative_eigenvalues=true`.

Cost: not measured.
Result: not measured.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """Parity, permutations of five points, or a `tiny` version for smoke tests."""
    config = base.defaults("algorithmic")
    config.model.d_model = 64
    config.model.num_layers = 1
    config.model.num_heads = 2
    config.model.mixer = "gated_delta"
    config.model.position = "none"
    config.model.max_length = 256
    config.model.vocab_multiple = 1
    config.data.source = "word_problem"
    config.data.arguments = {"degree": 2, "length": 32, "factor": 8}
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.schedule = "constant"
    config.train.steps = 1200
    config.train.batch_size = 64
    config.train.evaluate_every = 200
    return base.choose(config, preset, {"s5": {"data": {"arguments": {"degree": 5}}}, "tiny": TINY})


TINY = {
    "model": {"d_model": 16, "num_heads": 2},
    "data": {"arguments": {"degree": 3, "length": 4, "factor": 2}, "evaluated_rows": 32},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0},
}
