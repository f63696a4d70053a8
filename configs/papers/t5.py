"""T5 in its sizes (Raffel et al. 2020, section 2.1), trained from scratch on WMT 2014 English-German.

    python launch.py --config=configs/papers/t5.py
    python launch.py --config=configs/papers/t5.py:large

Presets: `small` (61 million parameters), `base` (223, the default), `large` (738), `3b` (2,852).
Differences: no pre-training on corrupted spans of C4, and one task alone. Embeddings start with a standard
deviation of 0.02, not 1. AdamW with the rate of Adafactor's first steps in place of Adafactor.

Cost: not measured here.
Result: not measured here.
"""

from ml_collections import ConfigDict

from configs import base

SIZES = {
    "small": (512, 6, 8, 64, 2048),
    "base": (768, 12, 12, 64, 3072),
    "large": (1024, 24, 16, 64, 4096),
    "3b": (1024, 24, 32, 128, 16_384),
}
"""Preset -> width, layers of each stack, heads, their width, hidden units."""

KEYS = ("d_model", "num_layers", "num_heads", "head_dim", "d_ff")


def get_config(preset: str = "") -> ConfigDict:
    """The run of a size, or its `tiny` version for smoke tests."""
    config = base.defaults("sequence_to_sequence")
    config.model.feed_forward = "relu"
    config.model.position = "t5"
    config.model.share_position = True
    config.model.attention_scale = 1.0
    config.model.scale_logits = True
    config.model.max_length = 512
    config.model.embedding_dropout = 0.1
    config.model.attention_dropout = 0.1
    config.model.dropout = 0.1
    config.model.dtype = "bfloat16"
    config.model.scan_layers = True
    config.data.source = "tfds:wmt14_translate/de-en"
    config.data.source_field = "en"
    config.data.target_field = "de"
    config.data.vocab_size = 32_000
    config.data.source_length = 512
    config.data.target_length = 512
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.warmup_steps = 10_000
    config.optimizer.weight_decay = 0.0
    config.train.steps = 262_144
    config.train.batch_size = 128
    config.train.evaluate_every = 5_000
    config.train.checkpoint_every = 5_000
    config.generate.max_new_tokens = 256
    sizes = {size: {"model": dict(zip(KEYS, values, strict=True))} for size, values in SIZES.items()}
    tiny = base.TINY_PAIRS | {"model": base.TINY_PAIRS["model"] | {"head_dim": 16}}
    return base.choose(config, f"base,{preset}".rstrip(","), sizes | {"tiny": tiny})
