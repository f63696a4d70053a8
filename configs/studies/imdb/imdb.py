"""Sentiment classification of film reviews (IMDB) with a small encoder from scratch.

    python launch.py --config=configs/studies/imdb/imdb.py

The data are tab-separated files with the columns `text` and `label`, in data/imdb. Where to get them, and all
measurements: docs/study_notes.md, "IMDB".

Cost: 10 min on one core (AVX2); 1.2 GB of memory.
Result: 83.2 % of 1,563 test reviews, trained on 2,803; a bag of words, trained on 3,126, has 87.2 %.
"""

from ml_collections import ConfigDict

from configs import base
from configs.studies.sst2 import sst2


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("classification")
    config.model.d_model = 128
    config.model.num_layers = 1
    config.model.d_ff = 256
    config.model.norm = "layer"
    config.model.dropout = 0.3
    config.model.embedding_dropout = 0.3
    config.model.head_dropout = 0.5
    config.data.source = "tsv:data/imdb/train.tsv"
    config.data.vocab_size = 8192
    config.data.sequence_length = 512
    config.loss.label_smoothing = 0.1
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.3
    config.optimizer.final_fraction = 0.1
    config.train.steps = 500
    config.train.evaluate_every = 100
    return base.choose(config, preset, {"tiny": sst2.TINY})
