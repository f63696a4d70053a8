"""Word vectors by skip-gram with negative sampling (word2vec), on Python's standard library or other text.

    python launch.py --config=configs/word_embedding.py --workdir=runs/words \\
        --config.data.source=text:wiki.train.tokens.txt.gz \\
        --config.data.validation_source=text:wiki.valid.tokens.txt.gz
    python launch.py --workdir=runs/words --mode=analyze --analogies=questions-words.txt

Cost: 8 min on 2 cores (AVX2) for 9 epochs of WikiText-2.
Result: validation loss 2.429 nats per pair; of 10,210 analogies of word2vec with known words 4.3 % are right.
By section, and nearest words: docs/study_notes.md, "Word vectors".
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
