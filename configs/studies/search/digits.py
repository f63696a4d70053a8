"""Handwritten digits and their names in words, with one tower for images and one for texts.

    python launch.py --config=configs/studies/search/digits.py

Cost: 38 s of processor time, 3 min beside other processes (2 cores of an AMD EPYC, AVX2, 2026-11-29).
Result: the nearest of ten names is that of 97.1 % of the 172 validation images, and of 95.5 % of the 198 test
images (95 % interval 92.4 to 98.0 %; recall@1 of --mode=evaluate --split=test).
"""

from ml_collections import ConfigDict

from configs import base

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

TINY = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64},
    "image": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64, "dropout": 0.0},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1},
}
"""Keys for smoke tests."""


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("image_text")
    for tower in (config.model, config.image):
        tower.d_model = 64
        tower.num_layers = 2
        tower.d_ff = 256
        tower.dropout = 0.1
    config.model.num_token_types = 1
    config.image.position = "sinusoidal"
    config.data.names = NAMES
    config.data.passage_length = 8
    config.data.shift = 1
    config.loss.learnt_temperature = True
    config.loss.symmetric = True
    config.optimizer.warmup_steps = 50
    config.train.steps = 600
    config.train.batch_size = 64
    config.train.evaluate_every = 200
    return base.choose(config, preset, {"tiny": TINY})
