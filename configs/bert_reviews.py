"""Pre-training of a small BERT, by masked tokens alone, on film reviews and articles, for what `imdb.py`
classifies. The texts are one a line: the reviews of IMDB's and the sentences of SST-2's training files
without their labels, and WikiText-2; put them into data/reviews, or name others in data.source.

    python launch.py --config=configs/bert_reviews.py
    python launch.py --config=configs/imdb.py --config.initialize_from=runs/bert_reviews

Cost: 15 min on 2 cores of an AMD EPYC (AVX-512), 2026-11-22, with other work on them for a part of the time.
Result: loss 3.606 on held-out texts (perplexity 37). It does not help yet: fine-tuned by `imdb.py` with
--config.optimizer.learning_rate=2e-3, seeds 0 and 1, 82.7 and 82.1 % of IMDB's test reviews are right, and of
the same model from scratch (--config.model.num_layers=2 --config.model.d_ff=512, that rate) 82.9 and 83.0 %.
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
    config.train.steps = 4000
    config.train.batch_size = 32
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 500
    config.train.sample_every = 500
    return base.choose(config, preset, {"tiny": TINY})


TINY = bert.TINY | {
    "data": {"source": "stdlib", "document": "file", "tokenizer": "bytes", "sequence_length": 64}
}
"""What makes it take seconds and learn nothing, of text that is there."""
