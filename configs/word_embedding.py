"""Word vectors by skip-gram with negative sampling (word2vec), on Python's standard library or any other
text.

    python launch.py --config=configs/word_embedding.py --workdir=runs/words \\
        --config.data.source=text:wiki.train.tokens.txt.gz \\
        --config.data.validation_source=text:wiki.valid.tokens.txt.gz
    python launch.py --workdir=runs/words --mode=analyze --analogies=questions-words.txt

Cost: 9 epochs of the 2.2 million words and punctuation marks of WikiText-2 in 7 min 53 s on 2 cores of an AMD
    EPYC (AVX2) with other work on them (2026-11-21); 4 min 34 s of processor time.
Result: validation loss 2.429 nats per pair (4.159 with all scores 0). Of word2vec's 19,544 analogies, 10,210
    have all their words in the vocabulary of 28,783, and 442 of these (4.3%) are correct: nationalities
    11.9%, family 9.6%, common capitals 7.4%, every other section 0.4% to 5.2%; king - man + woman is not
    queen. One run each with another learning rate: 0.002 gives 2.7%, 0.01 gives 4.5% and a loss of 2.497.
    Nearest to june: july, august, october; to minnesota: wisconsin, sioux, dakota; to guitar: hero, dj,
    metallica.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("word_embedding")
    config.data.document = "line"
    config.data.vocab_size = 30000
    config.data.sequence_length = 128
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 0.005
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0
    config.train.steps = 2500
    config.train.batch_size = 64
    return base.choose(config, preset, {"tiny": TINY})


TINY = {
    "model": {"d_model": 8},
    "data": {"vocab_size": 300, "sequence_length": 32},
    "optimizer": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1, "checkpoint_every": 0},
}
