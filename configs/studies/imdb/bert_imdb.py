"""Further pre-training of the encoder of `bert_reviews.py`, on film reviews only; `finetune_imdb.py`
fine-tunes it. Rows are long enough for most whole reviews. Half of the tokens are masked, so that a
prediction needs more than the neighbouring words.
Source: Howard and Ruder 2018 (ULMFiT), section 3.2; Gururangan et al. 2020.

    python launch.py --config=configs/studies/imdb/bert_reviews.py
    python launch.py --config=configs/studies/imdb/bert_imdb.py --config.initialize_from=runs/bert_reviews

Cost: 62 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-25, with other work on them, the second command;
1.4 s a step without.
Result: loss 4.049 on held-out reviews with half of the tokens masked, 4.144 when 400 steps are all.
`finetune_imdb.py` has the gain in classification.
"""

from ml_collections import ConfigDict

from configs import base
from configs.studies.imdb import bert_reviews


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("masked_lm")
    config.model.norm = "layer"
    config.model.dtype = "bfloat16"
    config.data.source = "text:data/reviews/imdb.txt"
    config.data.document = "line"
    config.data.lowercase = True
    config.data.vocab_size = 8192
    config.data.sequence_length = 512
    config.data.next_sentence = False
    config.data.masked_share = 0.5
    config.optimizer.learning_rate = 0.01
    config.optimizer.final_fraction = 0.1
    config.train.steps = 1600
    config.train.evaluate_every = 200
    return base.choose(config, preset, {"tiny": bert_reviews.TINY})
