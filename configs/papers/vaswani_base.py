"""The original Transformer, base model, on WMT 2014 English-German (Vaswani et al. 2017, tables 2 and 3).

    python launch.py --config=configs/papers/vaswani_base.py

Dropout acts on the outputs of sublayers and on the sums of embeddings and positions (section 5.4), and as in
the authors' code on the attention weights. A shared byte-pair vocabulary of 37,000 tokens; about 25,000
source and as many target tokens per batch (section 5.1).

Cost: not measured here; the paper took 12 hours on 8 NVIDIA P100.
Result: not measured here; the paper reports 27.3 BLEU on newstest2014 with five averaged checkpoints.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    """The run, or its `tiny` version for smoke tests."""
    config = base.defaults("sequence_to_sequence")
    config.model.d_model = 512
    config.model.num_layers = 6
    config.model.num_heads = 8
    config.model.d_ff = 2048
    config.model.norm = "layer"
    config.model.feed_forward = "relu"
    config.model.norm_placement = "post"
    config.model.position = "sinusoidal"
    config.model.max_length = 256
    config.model.scale_embeddings = True
    config.model.use_bias = True
    config.model.attention_bias = False
    config.model.embedding_dropout = 0.1
    config.model.attention_dropout = 0.1
    config.model.dropout = 0.1
    config.data.source = "tfds:wmt14_translate/de-en"
    config.data.source_field = "en"
    config.data.target_field = "de"
    config.data.vocab_size = 37000
    config.data.source_length = 256
    config.data.target_length = 256
    config.data.too_long = "skip"
    config.loss.label_smoothing = 0.1
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = (512 * 4000) ** -0.5
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.warmup_steps = 4000
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0
    config.optimizer.arguments.b2 = 0.98
    config.optimizer.arguments.eps = 1e-9
    config.train.steps = 100_000
    config.train.batch_size = 104
    config.train.evaluate_every = 5_000
    config.train.checkpoint_every = 1_500
    config.train.keep_last = 5
    config.train.average_last = 5
    config.generate.max_new_tokens = 256
    config.generate.extra_tokens = 50
    return base.choose(config, preset, {"tiny": base.TINY_PAIRS})
