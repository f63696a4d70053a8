"""Where words begin among tokens, which are often parts of words."""

import json

import numpy as np

from transformer.data.markers import Markers
from transformer.data.tokenizers import Tokenizer

BLANKS = {"Ġ", "Ċ", "ĉ", "č", "▁"}
"""The characters by which tokenizers write a space, the ends of lines and a tab at a token's beginning."""


class Words:
    """Tables of a tokenizer's tokens: how they join to words."""

    def __init__(self, tokenizer: Tokenizer, markers: Markers) -> None:
        """`ordinary` has the ids of all tokens that stand for text."""
        names = [tokenizer.name(i) for i in range(tokenizer.vocab_size)]
        special = {tokenizer.eos_id, markers.cls, markers.sep, markers.mask}
        self.ordinary = np.array([i for i, name in enumerate(names) if name and i not in special], np.int32)
        parts = json.loads(tokenizer.content)
        kind, of_bytes = parts["model"]["type"], (parts["decoder"] or {}).get("type") == "ByteLevel"
        size = markers.vocab_size
        self._continues_v, self._joins_v, self._open_v = (np.zeros(size, bool) for _ in range(3))
        for i in self.ordinary:
            name = names[i]
            self._continues_v[i] = kind == "WordPiece" and name.startswith("##")
            self._joins_v[i] = kind in ("BPE", "Unigram") and _is_letter(name[0], of_bytes)
            self._open_v[i] = _is_letter(name[-1], of_bytes)

    def begins(self, tokens_t: np.ndarray) -> np.ndarray:
        """Whether each token begins a word (t,): it does unless it continues the letters before it."""
        before_t = np.append(False, self._open_v[tokens_t[:-1]])
        return ~(self._continues_v[tokens_t] | (self._joins_v[tokens_t] & before_t))


def _is_letter(character: str, of_bytes: bool) -> bool:
    """Every byte past ASCII is a part of some character, which counts as a letter."""
    return character not in BLANKS and (character.isalnum() or (of_bytes and not character.isascii()))
