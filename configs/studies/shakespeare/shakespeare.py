"""Characters of Shakespeare (Tiny Shakespeare) with the sizes of nanoGPT's two recipes.

    python launch.py --config=configs/studies/shakespeare/shakespeare.py
    python launch.py --config=configs/studies/shakespeare/shakespeare.py:large

The text goes into data/tinyshakespeare. How to split it, and the differences from nanoGPT:
docs/study_notes.md, "Tiny Shakespeare".

Cost: 9 min on 2 cores (AVX-512); 0.8 GB of memory. `large`, cut short: 112 min.
Result: 1.561 nats per character (nanoGPT: 1.88). `large`, cut short: 1.422 (nanoGPT: 1.4697).
"""

from ml_collections import ConfigDict

from configs import base, lm


def get_config(preset: str = "") -> ConfigDict:
    """The run, its `large` version, or the `tiny` one for smoke tests."""
    config = base.defaults("language_modeling")
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.max_length = 64
    config.model.vocab_multiple = 1
    config.data.source = "text:data/tinyshakespeare/train.txt"
    config.data.validation_source = "text:data/tinyshakespeare/validation.txt"
    config.data.tokenizer = "characters"
    config.data.sequence_length = 64
    config.train.steps = 2000
    config.train.batch_size = 12
    config.train.evaluate_every = 500
    config.evaluate.batch_size = 64
    config.sample.prompt = "ROMEO:"
    return base.choose(config, preset, {"large": LARGE, "tiny": TINY})


LARGE = {
    "model": {
        "d_model": 384,
        "num_layers": 6,
        "num_heads": 6,
        "d_ff": 1536,
        "max_length": 256,
        "dropout": 0.2,
        "embedding_dropout": 0.2,
        "attention_dropout": 0.2,
    },
    "data": {"sequence_length": 256},
    "train": {
        "steps": 5000,
        "batch_size": 64,
        "evaluate_every": 250,
        "keep_best": "eval/loss",
        "checkpoint_every": 250,
    },
}

TINY = lm.TINY | {
    "data": {"source": "stdlib", "validation_source": "", "tokenizer": "bytes", "sequence_length": 32}
}
