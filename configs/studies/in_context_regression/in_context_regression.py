"""In-context linear regression by one layer of linear attention, against its closed form (Zhang et al. 2023).

    python launch.py --config=configs/studies/in_context_regression/in_context_regression.py

A row has 20 examples of a random linear function of 5 dimensions, and a query. The theory:
docs/study_notes.md, "In-context regression".

Cost: 5 min on 2 cores shared with other work (AVX-512), 1 min 4 s of processor time.
Result: squared error 1.1505 on 200,000 functions (--mode=evaluate --config.data.evaluated_rows=200000); the
closed form has 1.1503 on the same functions.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("in_context_regression")
    config.model.d_model = 6
    config.model.num_layers = 1
    config.model.num_heads = 1
    config.model.mixer = "linear"
    config.model.norm = "none"
    config.model.feed_forward = "none"
    config.model.projections = False
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 0.01
    config.optimizer.weight_decay = 0.0
    config.train.steps = 3000
    config.train.batch_size = 512
    config.train.evaluate_every = 250
    config.evaluate.batch_size = 2048
    return base.choose(config, preset, {"tiny": TINY})


TINY = {
    "data": {"examples": 4, "evaluated_rows": 64},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0},
    "evaluate": {"batch_size": 32},
}
