"""BERT, base model, pre-trained on English Wikipedia (Devlin et al. 2019, sections 3 and A.2).

    python launch.py --config=configs/papers/bert_base.py

Differences: the paper also trains on BooksCorpus, which is no longer distributed. It has a WordPiece
vocabulary of 30,522 tokens, whose `tokenizer.json` can be named in data.tokenizer. Of its 1,000,000 steps of
256 sequences, nine tenths have 128 tokens and the last tenth 512; here all have 512.

Cost: not measured here; the paper took 4 days on 16 TPU chips.
Result: not measured here.
"""

from ml_collections import ConfigDict

from configs import base, bert

TINY = bert.TINY | {
    "data": {"source": "stdlib", "tokenizer": "bytes", "vocab_size": 4096, "sequence_length": 64},
    "optimizer": {"warmup_steps": 1, "decay_steps": 1},
}
"""Keys for smoke tests, on data that need no download."""


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("masked_lm")
    config.initialize_std = 0.02
    config.model.d_model = 768
    config.model.num_layers = 12
    config.model.num_heads = 12
    config.model.d_ff = 3072
    config.model.norm = "layer"
    config.model.norm_placement = "post"
    config.model.norm_epsilon = 1e-12
    config.model.position = "learned"
    config.model.max_length = 512
    config.model.use_bias = True
    config.model.embedding_norm = True
    config.model.embedding_dropout = 0.1
    config.model.attention_dropout = 0.1
    config.model.dropout = 0.1
    config.data.source = "tfds:wiki40b/en"
    config.data.vocab_size = 30_000
    config.data.sequence_length = 512
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.schedule = "wsd"
    config.optimizer.warmup_steps = 10_000
    config.optimizer.decay_steps = 990_000
    config.optimizer.weight_decay = 0.01
    config.train.steps = 1_000_000
    config.train.batch_size = 256
    config.train.evaluate_every = 10_000
    config.train.evaluate_batches = 100
    config.train.checkpoint_every = 5_000
    return base.choose(config, preset, {"tiny": TINY})
