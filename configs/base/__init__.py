"""Every key of each kind of run; those of a group are listed in this folder, with their defaults and what
they mean, and a run's own file says only what differs.

A key is changed for one run on the command line, `--config.model.num_layers=4`. Lengths are in tokens,
`batch_size` in sequences over all devices, and 0 or "" switches an optional part off.
"""

from ml_collections import ConfigDict

from configs.base import data, models, training


def run(experiment: str) -> ConfigDict:
    """The keys that every run has."""
    config = ConfigDict()
    config.experiment = experiment  # which objective: a key of experiments.EXPERIMENTS
    config.seed = 0  # of the initial parameters, of dropout, of the order of the data and what is drawn of it
    config.initialize_from = ""  # the folder of a run to begin with, its parameters and tokenizer; "": none
    config.initialize_strict = True  # whether nothing but heads may be missing there
    config.initialize_std = 0.0  # of a truncated normal for all matrices and tables, BERT's 0.02; 0: by layer
    config.optimizer = training.optimizer()
    config.train = training.train()
    config.evaluate = training.evaluate()
    config.parallel = training.parallel()
    return config


def language_modeling() -> ConfigDict:
    """All keys of a causal language model."""
    config = run("language_modeling")
    config.model = models.decoder()
    config.data = data.text()
    config.loss = training.loss()
    config.sample = training.sample()
    return config


def transformer_xl() -> ConfigDict:
    """All keys of a language model with recurrence over segments."""
    config = language_modeling()
    config.experiment = "transformer_xl"  # which objective: a key of experiments.EXPERIMENTS
    config.model = models.transformer_xl()
    return config


def sequence_to_sequence() -> ConfigDict:
    """All keys of an encoder-decoder, for translation, summarisation and other pairs of texts."""
    config = run("sequence_to_sequence")
    config.model = models.encoder_decoder()
    config.data = data.pairs()
    config.loss = training.loss()
    config.generate = training.generate()
    return config


def recurrent_sequence_to_sequence() -> ConfigDict:
    """All keys of a recurrent encoder-decoder: only the model differs from a Transformer's."""
    config = sequence_to_sequence()
    config.experiment = "recurrent_sequence_to_sequence"  # which objective: a key of experiments.EXPERIMENTS
    config.model = models.recurrent()
    return config


def text_to_text() -> ConfigDict:
    """All keys of a decoder that reads a source and goes on with its target."""
    config = sequence_to_sequence()
    config.experiment = "text_to_text"  # which objective: a key of experiments.EXPERIMENTS
    config.model = models.decoder()
    config.data.loss_on = "target"  # which tokens count: those of the target, or all, the source's too
    return config


def masked_lm() -> ConfigDict:
    """All keys of an encoder's pre-training."""
    config = run("masked_lm")
    config.model = models.encoder()
    config.data = data.masked()
    config.loss = training.loss()
    return config


def classification() -> ConfigDict:
    """All keys of a classifier of texts."""
    config = run("classification")
    config.model = models.classifier()
    config.data = data.labelled()
    config.loss = training.label_loss()
    return config


def span_extraction() -> ConfigDict:
    """All keys of an encoder that answers questions by a piece of a text."""
    config = run("span_extraction")
    config.model = models.encoder()
    config.data = data.questions()
    config.answer = training.answer()
    return config


def vision() -> ConfigDict:
    """All keys of a classifier of images."""
    config = run("vision")
    config.model = models.vision_transformer()
    config.data = data.images()
    config.loss = training.label_loss()
    return config


def word_embedding() -> ConfigDict:
    """All keys of word vectors by skip-grams with negative sampling."""
    config = run("word_embedding")
    config.model = models.skip_gram()
    config.data = data.skip_grams()
    config.loss = training.negative_sampling()
    return config


def choose(config: ConfigDict, preset: str, presets: dict[str, dict]) -> ConfigDict:
    """`config` with the differences of the preset that was named after the colon of `--config=file:preset`.

    Raises:
      ValueError: there is no such preset.
    """
    if preset and preset not in presets:
        raise ValueError(f"{preset!r} is no preset of it; it has {', '.join(presets)}")
    config.update(presets[preset] if preset else {})
    return config


TINY_PAIRS = {
    "model": {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64, "max_length": 96},
    "data": {
        "source": "written_forms",
        "source_field": "source",
        "target_field": "target",
        "validation_source": "",
        "tokenizer": "bytes",
        "vocab_size": 4096,
        "split_by": "",
        "source_length": 48,
        "target_length": 48,
    },
    "optimizer": {"warmup_steps": 1, "decay_steps": 1},
    "train": {"steps": 2, "batch_size": 8, "evaluate_every": 0, "evaluate_batches": 1, "checkpoint_every": 0},
    "generate": {"max_new_tokens": 8, "examples": 5},
}
"""What makes any encoder-decoder's run take seconds and learn nothing."""
