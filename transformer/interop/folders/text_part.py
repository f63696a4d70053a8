"""The text model inside a model of several media, as Gemma 3 of 4 billion parameters has it."""

import re
from collections.abc import Mapping
from typing import Any

from transformer.interop.tensors import Tensor

OF_TEXT = "text_config"
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
"""Keys that stand beside `text_config`, and are of the text model."""

NAMES = (
    (r"^language_model\.", ""),  # until version 4.51 of transformers
    (r"^model\.language_model\.", "model."),  # from 4.52 on
    (r"^lm_head\.", "lm_head."),
)
"""The beginnings of names of the text model's tensors, and what they are without the rest."""


def text_config(config: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config of the text model, if the whole is of no known family, but the text model is."""
    text, names = config.get(OF_TEXT), [*known]
    if config.get("model_type") in names or not isinstance(text, dict) or text.get("model_type") not in names:
        return None
    return {name: config[name] for name in TOKENS if name in config} | text


def text_tensors(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the text model, under their names there."""
    return {
        re.sub(begins, short, name): tensor
        for name, tensor in stored.items()
        for begins, short in NAMES
        if re.match(begins, name)
    }
