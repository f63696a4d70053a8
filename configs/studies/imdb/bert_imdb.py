"""Further pre-training on film reviews alone of what `bert_reviews.py` has learned of reviews and articles;
`finetune_imdb.py` goes on from it. A row holds most reviews whole, and half of its tokens are masked, so
that what a word is has to be told from more than its neighbours.
Source: Howard and Ruder 2018 (ULMFiT), section 3.2; Gururangan et al. 2020.

    python launch.py --config=configs/studies/imdb/bert_reviews.py
    python launch.py --config=configs/studies/imdb/bert_imdb.py --config.initialize_from=runs/bert_reviews

Cost: 8 min 15 s on 2 cores of an AMD EPYC (AVX-512), 2026-11-22, the second command.
Result: loss 4.080 on held-out reviews, of whose tokens half are masked. What it is good for is in
`finetune_imdb.py`.
"""

from ml_collections import ConfigDict

from configs import base
from configs.studies.imdb import bert_reviews


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.defaults("masked_lm")
    config.model.norm = "layer"
    config.data.source = "text:data/reviews/imdb.txt"
    config.data.document = "line"
    config.data.vocab_size = 8192
    config.data.sequence_length = 512
    config.data.next_sentence = False
    config.data.masked_share = 0.5
    config.optimizer.learning_rate = 0.01
    config.optimizer.final_fraction = 0.1
    config.train.steps = 400
    config.train.evaluate_every = 100
    return base.choose(config, preset, {"tiny": bert_reviews.TINY})
