"""The recipe of speed runs (`modern`; Jordan et al. 2024) against that of GPT-2 (Radford et al. 2019).

    python launch.py --config=configs/studies/speedrun.py
    python launch.py --config=configs/studies/speedrun.py:modern

At equal FLOPs: 4 layers of width 64 on Python's standard library. docs/studies.md has the comparison and what
each ingredient is worth, docs/study_notes.md how the learning rates were chosen.

Cost: one to two minutes a run, two at a time, on 2 cores.
Result: 3.36 against 4.50 nats per token of validation text (means of 4 seeds; difference -1.136, 95 %
interval -1.705 to -0.567).
"""

from ml_collections import ConfigDict

from commands.sweeps.algebra import Setting, over, product
from configs import base, lm

STEPS = 300

DECAY = STEPS * 2 // 5
"""Steps of the linear decay at the end."""


def get_config(preset: str = "") -> ConfigDict:
    """The plain recipe, the `modern` one, or the `tiny` version of either for smoke tests."""
    config = base.defaults("language_modeling")
    config.initialize_std = 0.02  # as GPT-2
    config.model.d_model = 64
    config.model.d_ff = 256
    config.model.norm = "layer"
    config.model.norm_epsilon = 1e-5
    config.model.position = "learned"
    config.model.max_length = 128
    config.model.use_bias = True
    config.data.vocab_size = 512
    config.data.sequence_length = 128
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 0.002
    config.optimizer.warmup_steps = 15
    config.train.steps = STEPS
    config.train.batch_size = 8
    config.train.evaluate_batches = 32
    config.train.writers = "jsonl"
    config.evaluate.batch_size = 32
    config.train.log_every = 50
    config.sample.max_new_tokens = 8
    return base.choose(config, preset, {"modern": MODERN, "tiny": TINY})


MODERN: dict = {
    "initialize_std": 0.0,
    "model": {
        "norm": "rms",
        "position": "rope",
        "use_bias": False,
        "qk_norm": True,
        "feed_forward": "relu2",
        "skips": True,
        "value_embeddings": (0, -1),
        "logit_soft_cap": 30.0,
    },
    "optimizer": {
        "name": "cautious.contrib.muon",
        "learning_rate": 0.04,
        "schedule": "wsd",
        "decay_steps": DECAY,
    },
}
"""Changes of the modern recipe."""

WITHOUT: list[Setting] = [
    {"model.position": "learned"},
    {"model.norm": "layer", "model.use_bias": True},
    {"model.qk_norm": False},
    {"model.feed_forward": "gelu"},
    {"model.skips": False},
    {"model.value_embeddings": ()},
    {"model.logit_soft_cap": 0.0},
    {"initialize_std": 0.02},
    {"optimizer.name": "cautious.adamw", "optimizer.learning_rate": 0.016},
    {"optimizer.name": "contrib.muon"},
    {"optimizer.schedule": "cosine", "optimizer.decay_steps": 0},
]
"""Changes that each take one ingredient out of the modern recipe; AdamW has a learning rate of its own."""

TINY = lm.TINY | {
    "model": lm.TINY["model"] | {"num_layers": 2},
    "data": lm.TINY["data"] | {"vocab_size": 4096},
    "optimizer": {"schedule": "wsd", "warmup_steps": 1, "decay_steps": 1},  # fits both recipes
}


def sweep() -> list[Setting]:
    """The modern recipe, and without each of its ingredients, with three seeds; for `speedrun.py:modern`."""
    return product(over("seed", range(3)), [{}, *WITHOUT])
