"""The special tokens of an encoder, `[CLS]`, `[SEP]` and `[MASK]`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer.data.tokenization.tokenizers import Tokenizer

NAMES = (("[CLS]", "[SEP]", "[MASK]"), ("<s>", "</s>", "<mask>"))
"""The names of these tokens in tokenizers of BERT and of RoBERTa."""


def takes_space(tokenizer: Tokenizer) -> bool:
    """Whether a space belongs to the token of the word after it, and so to a `[MASK]` in its place."""
    return any(tokenizer.find(name) is not None for name in ("\u0120a", "\u2581a"))


MARK = re.compile(r"\[MASK(?:\*([1-9]\d{0,3}))?\]")
"""A mask in a text, `[MASK]`, or several, `[MASK*12]`."""


def mask_problem(text: str) -> str:
    """Why the masks of a text cannot be read: one has a number that is not from 1 to 9999; or ""."""
    wrong = [mark for mark in re.findall(r"\[MASK\*[^\]]*\]", text) if not MARK.fullmatch(mark)]
    return f"has {wrong[0]}; expected [MASK], or [MASK*N] with N from 1 to 9999" if wrong else ""


def encode_masked(tokenizer: Tokenizer, text: str, mask: int) -> list[int]:
    """The tokens of a text, with the token `mask` for each mask in it. A space before it is left out where
    it belongs to the word that is masked."""
    spaced, ids, end = takes_space(tokenizer), list[int](), 0
    for mark in MARK.finditer(text):
        before = text[end : mark.start()]
        ids += tokenizer.encode(before.removesuffix(" ") if spaced else before)
        ids += [mask] * int(mark[1] or 1)
        end = mark.end()
    return ids + tokenizer.encode(text[end:])


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of `[CLS]`, `[SEP]` and `[MASK]`: those of the tokenizer, or the first ids after its vocabulary.
    `vocab_size` includes them (Devlin et al. 2019, section 3.1)."""

    cls: int
    sep: int
    mask: int
    vocab_size: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpecialTokens":
        """The special tokens for a tokenizer, the same in every run; RoBERTa's if it has all of these, and
        none of BERT's, or begins a text with `<s>` (MPNet)."""
        ids, size = [], tokenizer.vocab_size
        bert, roberta = ({tokenizer.find(name) for name in names} for names in NAMES)
        first = tokenizer.backend.encode("").tokens[:1]
        has_bert = bert != {None} and first != [NAMES[1][0]]
        for name in NAMES[0 if has_bert or None in roberta else 1]:
            token_id = tokenizer.find(name)
            ids.append(size if token_id is None else token_id)
            size += token_id is None
        return cls(ids[0], ids[1], ids[2], size)

    def name(self, token: int) -> str:
        """The name of a special token; "" for any other token."""
        return {self.cls: "[CLS]", self.sep: "[SEP]", self.mask: "[MASK]"}.get(token, "")

    def build_input(self, texts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """`[CLS] text [SEP]`, or with two texts `[CLS] first [SEP] second [SEP]`; and the type of each token:
        1 in the second text, else 0."""
        size = 1 + sum(len(text) + 1 for text in texts)
        tokens, types, end = np.full(size, self.sep, np.int32), np.zeros(size, np.int32), 1
        tokens[0] = self.cls
        for kind, text in enumerate(texts):
            start, end = end, end + len(text) + 1
            tokens[start : end - 1], types[start:end] = text, kind
        return tokens, types
