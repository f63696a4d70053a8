"""Induction heads: attention alone learns to copy in context, with two layers and not with one.

Rows are random tokens that repeat themselves with a random period, so that the next token is known from what
followed the last occurrence of the present one. Olsson et al. 2022, "In-context learning and induction
heads", find that attention-only models of two layers learn to look it up in a sudden phase change, when heads
appear that attend to the token after an earlier occurrence, and that models of one layer do not.

    python launch.py --config=configs/studies/induction_heads/induction_heads.py
    python launch.py --config=configs/studies/induction_heads/induction_heads.py:one_layer

`answer_loss` and `accuracy` are of the tokens that are known; `induction/layer_1` is the attention of the
best head of layer 1 to tokens after earlier occurrences. report.png has the curves, attention/ the heads.

Cost: 8 min 55 s on 2 cores of an AMD EPYC (AVX-512) shared with other work (1 min 46 s of processor time),
    2026-11-23; one layer 5 min 42 s (1 min 5 s).
Result: two layers predict 99.99 % of the known tokens (0.007 nats each), one layer 19.5 % (2.83 nats). With
    two layers the loss of known tokens falls from 2.87 to 0.15 nats between steps 300 and 550, while the
    attention of the induction head rises from 0.06 to 0.69; in the end it is 0.98.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("algorithmic")
    config.model.d_model = 64
    config.model.num_layers = 2
    config.model.feed_forward = "none"
    config.model.max_length = 96
    config.model.vocab_multiple = 1
    config.data.arguments = {"vocab_size": 64, "length": 96, "shortest": 16, "longest": 32}
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.schedule = "constant"
    config.train.steps = 1500
    config.train.batch_size = 32
    config.train.evaluate_every = 50
    config.evaluate.also = "induction"
    return base.choose(config, preset, {"one_layer": {"model": {"num_layers": 1}}, "tiny": TINY})


TINY = {
    "model": {"d_model": 16, "num_heads": 2},
    "data": {"arguments": {"vocab_size": 8, "length": 12, "shortest": 2, "longest": 4}, "evaluated_rows": 32},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0},
}
