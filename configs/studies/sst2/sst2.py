"""Sentiment classification of sentences and phrases of film reviews (SST-2) with a small encoder from
scratch.

The data are tab-separated files with a header, `sentence` and `label`, as in GLUE. Put them into data/sst2,
or name others in data.source and data.validation_source. TFDS has them too, with a network:
--config.data.source=tfds:glue/sst2 --config.data.validation_source=.

    python launch.py --config=configs/studies/sst2/sst2.py

Cost: 9 min on one core of an AMD EPYC (AVX2), with other work on the machine, 2026-11-21; 1.1 GB of memory.
Result: 80.6 % of the 872 sentences of a dev file (436 of each label), of which no training phrase is a part.
A bag of words reaches 82.7 % (python -m benchmarks.bag_of_words with the same files).
"""

from ml_collections import ConfigDict

from configs import base, classification


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("classification")
    config.model.d_model = 128
    config.model.num_layers = 2
    config.model.d_ff = 512
    config.model.norm = "layer"
    config.model.dropout = 0.3
    config.model.embedding_dropout = 0.3
    config.model.head_dropout = 0.3
    config.data.source = "tsv:data/sst2/train.tsv"
    config.data.validation_source = "tsv:data/sst2/dev.tsv"
    config.data.text_field = "sentence"
    config.data.vocab_size = 8192
    config.loss.label_smoothing = 0.1
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.3
    config.optimizer.final_fraction = 0.1
    config.train.steps = 600
    config.train.evaluate_every = 100
    return base.choose(config, preset, {"tiny": TINY})


TINY = classification.TINY | {
    "data": {
        "source": "snippets",
        "validation_source": "",
        "text_field": "text",
        "tokenizer": "bytes",
        "vocab_size": 4096,
        "sequence_length": 64,
    },
}
"""Keys for smoke tests, on data that need no download."""
