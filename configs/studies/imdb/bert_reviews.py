"""Pre-training of a small BERT, masked language modelling only, on film reviews and articles.

    python launch.py --config=configs/studies/imdb/bert_reviews.py

The commands that make its files: docs/study_notes.md, "Pre-training on reviews". `bert_imdb.py` continues
from it.

Cost: 76 min on 2 cores (AVX-512).
Result: loss 3.249 on held-out texts (perplexity 25.8) with a quarter of the tokens masked.
"""

from ml_collections import ConfigDict

from configs import base, bert


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("masked_lm")
    config.model.norm = "layer"
    config.model.dtype = "bfloat16"
    config.data.source = "text:data/reviews/*.txt"
    config.data.document = "line"
    config.data.lowercase = True
    config.data.vocab_size = 8192
    config.data.sequence_length = 256
    config.data.next_sentence = False
    config.data.masked_share = 0.25
    config.optimizer.final_fraction = 0.1
    config.train.steps = 3000
    config.train.batch_size = 32
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 500
    config.train.sample_every = 500
    return base.choose(config, preset, {"tiny": TINY})


TINY = bert.TINY | {
    "data": {
        "source": "stdlib",
        "document": "file",
        "tokenizer": "bytes",
        "vocab_size": 4096,
        "sequence_length": 64,
    }
}
"""Keys for smoke tests, on data that need no download."""
