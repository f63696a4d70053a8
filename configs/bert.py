"""Pre-training of a BERT: guess masked tokens, and whether one text follows another, in the source text of
the Python standard library or in text of your own.

    python launch.py --config=configs/bert.py
    python launch.py --config=configs/bert.py --config.data.source='text:/my/*.txt'

Cost: not yet measured.
Result: not yet measured.
"""

from ml_collections import ConfigDict

from configs import base

TINY = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64, "max_length": 64},
    "data": {"tokenizer": "bytes", "sequence_length": 64},
    "optimizer": {"warmup_steps": 1, "decay_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1},
}
"""What makes any pre-training take seconds and learn nothing."""


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version, which takes seconds and learns nothing."""
    config = base.masked_lm()
    config.model.position = "learned"
    config.model.max_length = 512
    config.model.use_bias = True
    config.model.dropout = 0.1
    config.model.attention_dropout = 0.1
    config.data.document = "paragraph"
    config.optimizer.arguments.b2 = 0.98
    config.train.batch_size = 32
    config.train.evaluate_every = 250
    config.train.checkpoint_every = 250
    config.train.sample_every = 250
    return base.choose(config, preset, {"tiny": TINY})
