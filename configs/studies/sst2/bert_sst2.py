"""Pre-training of a BERT of 8 layers for `finetune_sst2.py`, on one GPU: masked language modelling of film
reviews, articles and abstracts. The files are those of `bert_reviews.py`, and, one text per line without
labels or summaries, `imdb_test.txt` (IMDB's test file), `bbc.txt`, `xsum.txt` (articles of BBC News Summary
and XSum) and `scitldr.txt` (abstracts of SciTLDR), 29 MB together. SST-2's dev file is not among them.

    python launch.py --config=configs/studies/sst2/bert_sst2.py

Cost: 4 min 35 s on one NVIDIA H200, 2026-11-26, of which it was stopped for about 40 s for other
measurements; 27 ms a step (median), of which it waited 14 % for batches, and 64 % in the worst twentieth.
Result: loss 3.160 on held-out texts (perplexity 23.6) with 30 % of the tokens masked; 2.51 on those that it
is trained on, after 20 epochs of 6.7 million tokens. `finetune_sst2.py` has the gain in classification. No
other setting was tried.
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
    config.train.sample_every = 2000
    return base.choose(config, preset, {"tiny": bert_reviews.TINY})
