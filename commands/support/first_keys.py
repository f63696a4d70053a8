"""The keys of a config that people change first, for `--config=FILE --help`."""

from collections.abc import Collection

FIRST = {
    "data": (
        "data.source",
        "data.text_field",
        "data.source_field",
        "data.target_field",
        "data.messages_field",
        "data.prompt_field",
        "data.question_field",
        "data.context_field",
        "data.image_field",
        "data.label_field",
        "data.arguments",
        "data.tokenizer",
        "data.vocab_size",
        "data.sequence_length",
        "data.source_length",
        "data.target_length",
        "data.image_size",
        "data.dimension",
        "data.examples",
    ),
    "model": (
        "model.d_model",
        "model.num_layers",
        "model.num_encoder_layers",
        "model.num_heads",
        "model.d_ff",
        "model.patch_size",
        "model.position",
        "model.dropout",
        "model.dtype",
    ),
    "optimizer": ("optimizer.name", "optimizer.learning_rate", "optimizer.warmup_steps"),
    "training": (
        "train.steps",
        "train.batch_size",
        "train.evaluate_every",
        "seed",
        "initialize_from",
    ),
}
"""Group -> its keys, of all experiments: twenty of a language model."""


def first_keys(names: Collection[str]) -> dict[str, list[str]]:
    """The groups of `FIRST` with those of their keys that are among a config's."""
    return {group: [name for name in keys if name in names] for group, keys in FIRST.items()}
