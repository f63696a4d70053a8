"""Translation of English image captions into German (Multi30k) with a small Transformer from scratch.

    python launch.py --config=configs/studies/multi30k/translation_multi30k.py

The data are the files of data/task1/raw in github.com/multi30k/dataset, in data/multi30k. All measurements:
docs/study_notes.md, "Multi30k".

Cost: 88 min on one core (AVX-512); 1.05 GB for a step.
Result: 40.7 +- 0.5 BLEU on test_2016_flickr (three seeds), 41.5 +- 1.2 on the validation captions, with 5
beams.
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
