"""Pre-training of a small BERT, by masked tokens alone, on film reviews and articles, for what `imdb.py`
classifies. The texts are one a line: the reviews of IMDB's and the sentences of SST-2's training files
without their labels, and WikiText-2; put them into data/reviews, or name others in data.source.

    python launch.py --config=configs/bert_reviews.py
    python launch.py --config=configs/imdb.py --config.initialize_from=runs/bert_reviews

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs import base, bert


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.masked_lm()
    config.model.d_model = 128
    config.model.num_layers = 2
    config.model.d_ff = 512
    config.data.source = "text:data/reviews/*.txt"
    config.data.document = "line"
    config.data.vocab_size = 8192
    config.data.sequence_length = 256
    config.data.next_sentence = False
    config.optimizer.learning_rate = 2e-3
    config.optimizer.arguments.b2 = 0.98
    config.train.steps = 2000
    config.train.batch_size = 32
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 500
    config.train.sample_every = 500
    return base.choose(config, preset, {"tiny": TINY})


TINY = bert.TINY | {
    "data": {"source": "stdlib", "document": "file", "tokenizer": "bytes", "sequence_length": 64}
}
"""What makes it take seconds and learn nothing, of text that is there."""
