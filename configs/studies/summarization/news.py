"""Summaries of news articles, XSum (one sentence, abstractive) or BBC (sentences of the article), by a small
decoder from scratch.

The data are JSON lines with the fields `article` and `summary`, such as the files of XSum (Narayan et al.
2018) or the BBC News Summary set (Greene and Cunningham 2006) written so. Put them into data/summarization as
{xsum,bbc}_train.jsonl.gz and {xsum,bbc}_dev.jsonl, or name others in data.source. A twentieth of the training
articles is held out for validation, on which keys were chosen, and another one for --split=test. The
development file is measured once, by --mode=evaluate --input=jsonl:data/summarization/xsum_dev.jsonl.

    python launch.py --config=configs/studies/summarization/news.py
    python launch.py --config=configs/studies/summarization/news.py:bbc
    python -m benchmarks.lead_sentences --source=jsonl:data/summarization/xsum_dev.jsonl \\
        --source_field=article --target_field=summary

Cost: about 10 min of processor time each; 240 of 300 steps on XSum took 8 min on one core of an AMD EPYC
(AVX-512), 2026-11-23, with much other work on the machine.
Result: not measured on the development files. At step 200 on XSum, on 55 held-out training articles, ROUGE-1
13.9, ROUGE-2 1.8, ROUGE-L 12.0 (an encoder-decoder with the data keys of this config, of 3 + 3 layers: 13.2,
1.8 and 11.4). The numbers to beat are those of the first sentences (the last command): on 200 development
articles of XSum 17.0, 1.5 and 12.0 for the first one, on 200 of the BBC 44.9, 36.7 and 33.7 for the first
three. A model of this size, trained on 1,300 to 1,600 articles, is expected to stay below them.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run on XSum, on BBC with the preset `bbc`, or the `tiny` version for smoke tests."""
    config = base.defaults("text_to_text")
    config.model.d_model = 192
    config.model.d_ff = 512
    config.model.dropout = 0.2
    config.data.source = "jsonl:data/summarization/xsum_train.jsonl.gz"
    config.data.source_field = "article"
    config.data.target_field = "summary"
    config.data.source_length = 256
    config.data.target_length = 64
    config.data.loss_on = "all"
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
