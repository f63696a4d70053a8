"""Translation of English image captions into German (Multi30k) with a small Transformer from scratch.

The data are the files of data/task1/raw in github.com/multi30k/dataset. Put them into data/multi30k, or name
others in data.source and data.validation_source.

    python launch.py --config=configs/studies/multi30k/translation_multi30k.py

Cost: 88 min on one core of an AMD EPYC (AVX-512), 2026-11-25, with other work on the machine; a step takes
    1.05 GB by XLA's analysis.
Result: 40.7 +- 0.5 BLEU on test_2016_flickr (40.8, 40.9 and 40.5 with --config.seed=0, 1 and 2) and 41.5 +-
1.2 on the validation captions, on which all keys were chosen, with 5 beams
(nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0). In a third of the steps, with dropout 0.2 and
float32, it was 39.4 and 40.2, in 12 min 29 s on 2 cores (one run, 2026-11-22). --config.data.bpe_dropout=0.1
is not a gain: 39.2 on the 1,014 validation captions with float32 (seed 0, 2026-11-28), where seed 0 has 41.8
without it; 200 of them, as training reads by default, had 41.7.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("sequence_to_sequence")
    config.model.num_layers = 3
    config.model.d_ff = 512
    config.model.dropout = 0.3
    config.model.embedding_dropout = 0.2
    config.model.dtype = "bfloat16"
    config.model.max_length = 128
    config.data.source = "aligned:data/multi30k/train.en.gz,data/multi30k/train.de.gz"
    config.data.validation_source = "aligned:data/multi30k/val.en.gz,data/multi30k/val.de.gz"
    config.data.vocab_size = 6000
    config.loss.label_smoothing = 0.1
    config.train.batch_size = 32
    config.train.steps = 2800
    config.train.evaluate_every = 400
    config.train.checkpoint_every = 200
    config.train.sample_every = 400
    config.generate.beam_size = 5
    config.generate.length_penalty = 1.0
    config.generate.max_new_tokens = 80
    return base.choose(config, preset, {"tiny": base.TINY_PAIRS})
