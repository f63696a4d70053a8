"""Search for functions of the Python standard library by the first line of their docstrings.

    python launch.py --config=configs/studies/search/functions.py

Modules are divided, so that no function of validation is beside one of training; docstrings may be the same.

Cost: 4 min of processor time, 11 min beside other processes (2 cores of an AMD EPYC, AVX2, 2026-11-29).
Result: recall@10 52.4 % of the 757 validation queries in 801 functions; a bag of words has more. The test
split and the bag of words beside it: docs/study_notes.md, "Search for functions, and digits".
"""

from ml_collections import ConfigDict

from configs import base

TINY = {
    "model": {"d_model": 32, "num_heads": 2, "d_ff": 64, "dropout": 0.0, "embedding_dropout": 0.0},
    "data": {"tokenizer": "bytes", "vocab_size": 4096, "query_length": 24, "passage_length": 32},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1},
}
"""Keys for smoke tests."""


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("contrastive")
    config.model.num_layers = 1
    config.model.dropout = 0.2
    config.model.embedding_dropout = 0.3
    config.model.num_token_types = 1
    config.data.lowercase = True
    config.data.overlap = 0.1  # short docstrings are the same in several modules
    config.data.query_length = 24
    config.data.passage_length = 96
    config.loss.symmetric = True
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 50
    config.train.steps = 200
    config.train.batch_size = 64
    config.train.evaluate_every = 50
    return base.choose(config, preset, {"tiny": TINY})
