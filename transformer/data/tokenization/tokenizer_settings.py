"""Files beside a `tokenizer.json`: the names of its special tokens, and its chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from transformer.errors import UserError
from transformer.json_text import parse_json

ROLES = ("bos_token", "eos_token", "pad_token")
"""Roles of special tokens, as tokenizer_config.json names them: before a document, after it, padding."""

TEXTS = ("chat_template", "padding_side")
KEPT = (*TEXTS, "unk_token", "mask_token")
"""Keys of tokenizer_config.json that change no encoding: `TEXTS`, and what others call their tokens."""

SETTINGS, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
"""Names of the files: one names the special tokens, and either may have a chat template."""


def settings_beside(file: Path) -> dict[str, Any]:
    """The settings beside a `tokenizer.json`: the values of a `tokenizer_config.json`, with the chat template
    of a `chat_template.jinja`; {} if there is neither.

    Raises:
      UserError: one of them cannot be read, or the first is not a JSON object.
    """
    path, template = file.with_name(SETTINGS), file.with_name(TEMPLATE)
    try:
        settings = parse_json(path.read_text(encoding="utf-8-sig")) if path.is_file() else {}
        own = {"chat_template": template.read_text(encoding="utf-8-sig")} if template.is_file() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} or {TEMPLATE} beside it: not readable ({str(error)[:160]})") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path}: a JSON {type(settings).__name__}; expected an object, {{...}}")
    return settings | own


def special_in(settings: Mapping[str, Any], backend: tokenizers.Tokenizer) -> dict[str, str]:
    """Role -> name of the special tokens that the values of a `tokenizer_config.json` name and the tokenizer
    has; and the values `KEPT`."""
    values, vocabulary = {key: settings.get(key) for key in (*ROLES, *KEPT)}, backend.get_vocab()
    # A name may come with how the token is stripped.
    texts = {key: text.get("content") if isinstance(text, dict) else text for key, text in values.items()}
    texts["chat_template"] = chat_template_in(settings)
    strings = {key: text for key, text in texts.items() if isinstance(text, str) and text}
    return {key: text for key, text in strings.items() if key in TEXTS or text in vocabulary}


def chat_template_in(settings: Mapping[str, Any]) -> str:
    """The chat template in the values of a `tokenizer_config.json`, of several the one named "default"; ""
    if there is none."""
    template = settings.get("chat_template")
    templates = template if isinstance(template, list) else [{"name": "default", "template": template}]
    default = [entry for entry in templates if isinstance(entry, dict) and entry.get("name") == "default"]
    return next((entry["template"] for entry in default if isinstance(entry.get("template"), str)), "")
