"""Tokenizers that cannot encode a text with a word that they do not know."""

from typing import Any

import tokenizers

from transformer.errors import UserError, brief, first_line

MAX_SHOWN_CHARACTERS = 60
"""Characters of a word or text that are shown in a message."""


class ClosedVocabulary:
    """A tokenizer of the `tokenizers` library, whose model has no unknown token. It is used as the tokenizer
    is; a text with a word that it does not know is a `UserError` that names the word."""

    def __init__(self, backend: tokenizers.Tokenizer, name: str) -> None:
        """`name` is that of the tokenizer, for messages."""
        vars(self).update(_backend=backend, _name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._backend, name, value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        return self._telling(value) if name in ("encode", "encode_batch", "encode_batch_fast") else value

    def _telling(self, encode: Any) -> Any:
        def told(texts: Any, **options: Any) -> Any:
            try:
                return encode(texts, **options)
            except Exception as error:  # the library raises nothing more precise
                raise self._unknown([texts] if isinstance(texts, str) else texts, error) from None

        return told

    def _unknown(self, texts: Any, error: Exception) -> UserError:
        backend = self._backend
        for text in texts:
            plain = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
            before = backend.pre_tokenizer
            words = [plain] if before is None else [word for word, _ in before.pre_tokenize_str(plain)]
            for word in words:
                try:
                    backend.model.tokenize(word)
                except Exception:  # as above
                    shown = f"{brief(word, MAX_SHOWN_CHARACTERS)!r} in {brief(text, MAX_SHOWN_CHARACTERS)!r}"
                    where = f"{self._name}: {shown} has no token"
                    why = f"there is no unknown token ({first_line(error)})"
                    return UserError(f"{where}, and {why}: add one to the model, or leave out such texts")
        return UserError(f"{self._name}: a text cannot be encoded ({first_line(error)})")
