"""Associative recall: how well each kind of mixer looks up values of keys (Arora et al. 2024, "Zoology").

    python launch.py --config=configs/studies/recall/recall.py --config.model.mixer=gated_delta

Rows are key-value pairs and then queries; `accuracy` is the share of queries whose value is most probable.
Presets `wide` (128 tokens, 8 pairs) and `wider` (256, 16) have more. Details: docs/study_notes.md, "Recall".

Cost: 100 s on 2 cores of an AMD EPYC (AVX-512) with other work on them, 61 s of processor time.
Result: attention answers 98.3 % of the queries.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, one with longer rows, or its `tiny` version for smoke tests."""
    config = base.defaults("algorithmic")
    config.model.d_model = 64
    config.model.num_layers = 2
    config.model.num_heads = 2
    config.model.feed_forward = "none"
    config.model.max_length = 256
    config.model.vocab_multiple = 1
    config.data.source = "recall"
    config.data.arguments = {"vocab_size": 512, "length": 64, "pairs": 4}
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.schedule = "constant"
    config.train.steps = 1200
    config.train.batch_size = 64
    config.train.evaluate_every = 200
    presets: dict[str, dict] = {
        "wide": {"data": {"arguments": {"length": 128, "pairs": 8}}},
        "wider": {"data": {"arguments": {"length": 256, "pairs": 16}}},
        "tiny": TINY,
    }
    return base.choose(config, preset, presets)


TINY = {
    "model": {"d_model": 16, "num_heads": 2},
    "data": {"arguments": {"vocab_size": 16, "length": 16, "pairs": 2}, "evaluated_rows": 32},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0},
}
