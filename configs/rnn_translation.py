"""Translation with a recurrent encoder-decoder: GRUs, and attention over the encoder's states, on the data of
configs/translation.py. With model.attention=none one vector represents the whole source.

    python launch.py --config=configs/rnn_translation.py

Cost: 6 min 10 s on 2 cores of an AMD EPYC (AVX-512), 2026-11-22; 3.1 GB of memory.
Result: 200 of 200 validation pairs are correct (BLEU 100).
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("recurrent_sequence_to_sequence")
    config.model.dropout = 0.1
    config.data.vocab_size = 1000
    config.data.source_length = 64
    config.data.target_length = 64
    config.loss.label_smoothing = 0.1
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 3e-3
    config.optimizer.weight_decay = 0.0
    config.train.batch_size = 64
    config.train.evaluate_every = 250
    config.train.checkpoint_every = 250
    config.train.sample_every = 250
    config.generate.max_new_tokens = 48
    return base.choose(config, preset, {"tiny": TINY})


TINY = base.TINY_PAIRS | {"model": {"d_model": 32, "num_layers": 1}}
