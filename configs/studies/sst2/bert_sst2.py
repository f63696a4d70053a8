"""Pre-training of a BERT of 8 layers for `finetune_sst2.py`, on one GPU: masked language modelling of film
reviews, articles and abstracts.
"""

from ml_collections import ConfigDict

from configs import base
from configs.studies.imdb import bert_reviews


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = bert_reviews.get_config()
    config.model.d_model = 512
    config.model.num_layers = 8
    config.model.num_heads = 8
    config.model.d_ff = 2048
    config.model.dropout = 0.1
    config.model.embedding_dropout = 0.1
    config.data.masked_share = 0.3
    config.train.steps = 4000
    config.train.batch_size = 128
    config.train.evaluate_every = 2000
    config.train.checkpoint_every = 2000
    config.train.sample_every = 0
    return base.choose(config, preset, {"tiny": bert_reviews.TINY})
