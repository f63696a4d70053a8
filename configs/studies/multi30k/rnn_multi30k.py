"""Translation of English captions into German (Multi30k) with GRUs and additive attention, on the data of
translation_multi30k.py. --config.model.attention=none trains without attention.

    python launch.py --config=configs/studies/multi30k/rnn_multi30k.py

Cost: 45 min with additive attention and 43 min without, on one core of an AMD EPYC (AVX2), with other work on
the machine, 2026-11-26; 2.6 GB of memory. It reads a third of the Transformer's target tokens.
Result: on test_2016_flickr, with 5 beams, 35.1 BLEU with additive attention and 17.5 without (one run each;
34.8 and 17.6 on the validation captions; nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0). With
AdamW, a learning rate of 0.002 and no weight decay it was 31.9 and 13.9, 2026-11-21. docs/benchmarks.md,
"Attention in recurrent models", has half as many tokens, three seeds, a Transformer beside them, and results
by length.
"""

from ml_collections import ConfigDict

from configs import base, rnn_translation


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("recurrent_sequence_to_sequence")
    config.model.dropout = 0.3
    config.data.source = "aligned:data/multi30k/train.en.gz,data/multi30k/train.de.gz"
    config.data.validation_source = "aligned:data/multi30k/val.en.gz,data/multi30k/val.de.gz"
    config.data.vocab_size = 6000
    config.data.source_length = 64
    config.data.target_length = 64
    config.loss.label_smoothing = 0.1
    config.train.batch_size = 64
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 500
    config.train.sample_every = 500
    config.generate.beam_size = 5
    config.generate.max_new_tokens = 60
    return base.choose(config, preset, {"tiny": rnn_translation.TINY})
