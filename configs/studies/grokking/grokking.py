"""Grokking: addition modulo 113 is generalised long after the training pairs are memorised (Power et al.).

    python launch.py --config=configs/studies/grokking/grokking.py
    python launch.py --config=configs/studies/grokking/grokking.py:published

Model and data of Nanda et al. 2023, with 5 times the learning rate and twice the weight decay; `published`
has theirs. report.png has the curves. Details: docs/study_notes.md, "Grokking".

Cost: 10 min on 2 cores shared with other work (AVX-512), 1 min 43 s of processor time.
Result: training pairs are all right at step 100, with 31.5 % of the others; all of these at step 320.
`published`: not run.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, the `published` one, or the `tiny` version for smoke tests."""
    config = base.defaults("algorithmic")
    config.model.d_model = 128
    config.model.num_layers = 1
    config.model.d_ff = 512
    config.model.feed_forward = "relu"
    config.model.norm = "none"
    config.model.position = "learned"
    config.model.max_length = 3
    config.model.use_bias = True
    config.model.attention_bias = False
    config.model.tie_embeddings = False
    config.model.vocab_multiple = 1
    config.data.source = "modular_addition"
    config.data.arguments = {"modulus": 113, "train_fraction": 0.3}
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-3
    config.optimizer.schedule = "constant"
    config.optimizer.warmup_steps = 10
    config.optimizer.weight_decay = 2.0
    config.optimizer.rules = ({"match": "", "weight_decay": 2.0},)  # of biases and embeddings too
    config.optimizer.arguments = {"b2": 0.98}
    config.optimizer.clip_norm = 0.0
    config.train.steps = 400
    config.train.batch_size = 3830
    config.train.evaluate_every = 10
    return base.choose(config, preset, {"published": PUBLISHED, "tiny": TINY})


PUBLISHED = {
    "optimizer": {
        "learning_rate": 1e-3,
        "weight_decay": 1.0,
        "rules": ({"match": "", "weight_decay": 1.0},),
    },
    "train": {"steps": 4000, "evaluate_every": 100},
}

TINY = {
    "model": {"d_model": 32, "num_heads": 2, "d_ff": 64},
    "data": {"arguments": {"modulus": 7, "train_fraction": 0.5}},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 24, "evaluate_every": 0},
}
