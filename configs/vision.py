"""Images as arrays of patches, the Vision Transformer: handwritten digits, or images of your own.

    python launch.py --config=configs/vision.py

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs import base

TINY = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64},
    "optimizer": {"warmup_steps": 1, "decay_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1},
}
"""What makes a run take seconds and learn nothing."""


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.vision()
    config.model.d_model = 64
    config.model.num_layers = 4
    config.model.d_ff = 256
    config.model.max_length = 65
    config.model.use_bias = True
    config.model.dropout = 0.1
    # Learned positions begin much smaller than patches, and take three times as long to be of use.
    config.model.position = "sinusoidal"
    config.data.shift = 1
    config.optimizer.learning_rate = 2e-3
    config.train.steps = 1200
    config.train.batch_size = 64
    config.train.evaluate_every = 200
    return base.choose(config, preset, {"tiny": TINY})
