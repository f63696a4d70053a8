"""In-context linear regression by one layer of linear attention, against its closed form.

A row has 20 examples (x, w . x) of a random linear function of 5 dimensions, and a query x. For one layer of
linear attention, without norm, feed-forward and projections into the residual stream, the least expected
squared error d (d + 1) / (n + d + 1) and the weights that reach it are known (Zhang, Frei and Bartlett 2023,
theorem 4.1; Ahn et al. 2023, theorem 1): one step of gradient descent from 0 (von Oswald et al. 2023), with
the best rate n / (n + d + 1). Training from random weights should approach it, and can do no better.

    python launch.py --config=configs/studies/in_context_regression/in_context_regression.py

Cost: 4 min 48 s on 2 cores of an AMD EPYC (AVX-512) shared with other work (1 min 4 s of processor time),
    2026-11-23.
Result: a squared error of 1.1505 on 200,000 functions (--mode=evaluate --config.data.evaluated_rows=200000),
    1.1503 by the closed form on the same ones, whose expectation is 1.1538; 5 by predicting 0. Seed 0.
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
