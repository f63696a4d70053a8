"""Summaries of news, XSum (abstractive) or BBC (sentences of the article), by a small encoder-decoder.

    python launch.py --config=configs/studies/summarization/news.py
    python launch.py --config=configs/studies/summarization/news.py:bbc

The data are JSON lines with `article` and `summary`, in data/summarization. Where to get them, and all
measurements: docs/study_notes.md, "News summaries".

Cost: 8 min of one core (AVX-512) on XSum, 10 on BBC; 1.7 GB of memory.
Result: on 200 development articles ROUGE-1, 2 and L 13.1, 1.6 and 11.2 on XSum (first sentence: 17.0, 1.5 and
12.0); 17.4, 2.4 and 13.2 on BBC (first three sentences: 44.9, 36.7 and 33.7).
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run on XSum, on BBC with the preset `bbc`, or the `tiny` version for smoke tests."""
    config = base.defaults("sequence_to_sequence")
    config.model.d_model = 192
    config.model.num_layers = 3
    config.model.d_ff = 512
    config.model.dropout = 0.2
    config.data.source = "jsonl:data/summarization/xsum_train.jsonl.gz"
    config.data.source_field = "article"
    config.data.target_field = "summary"
    config.data.source_length = 256
    config.data.target_length = 64
    config.loss.label_smoothing = 0.1
    config.optimizer.warmup_steps = 50
    config.train.steps = 300
    config.train.evaluate_every = 100
    config.train.checkpoint_every = 100
    config.train.sample_every = 100
    config.generate.max_new_tokens = 48
    config.generate.metric = "rouge"
    return base.choose(config, preset, {"bbc": BBC, "tiny": base.TINY_PAIRS})


BBC = {
    "data": {
        "source": "jsonl:data/summarization/bbc_train.jsonl.gz",
        "source_length": 384,
        "target_length": 256,
    },
    "train": {"batch_size": 8},
    "generate": {"max_new_tokens": 192},
}
"""Keys of the run on BBC, whose summaries are longer."""
