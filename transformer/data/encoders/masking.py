"""Masking for masked language modelling."""

import json
from dataclasses import dataclass

import numpy as np

from transformer.data.tokenization.special_tokens import SpecialTokens
from transformer.data.tokenization.tokenizers import Tokenizer

BLANKS = {"Ġ", "Ċ", "ĉ", "č", "▁"}
"""Characters by which tokenizers write a space, line breaks and a tab at the beginning of a token."""

MASKED, RANDOM = 0.8, 0.1
"""The shares of the chosen tokens that become `[MASK]` and a random token; the others are unchanged (Devlin
et al. 2019, section 3.1)."""

MEAN_SPAN, LONGEST_SPAN = 0.2, 10
"""The parameter p of the geometric distribution of span lengths in words, and the longest span (Joshi et al.
2020, SpanBERT, section 3.1)."""


class WordBoundaries:
    """Tables of which tokens of a tokenizer start a word."""

    def __init__(self, tokenizer: Tokenizer, special_tokens: SpecialTokens) -> None:
        """`ordinary` will have the ids of all tokens of text, without special ones."""
        names = [tokenizer.name(i) for i in range(tokenizer.vocab_size)]
        special = {
            tokenizer.bos_id,
            tokenizer.eos_id,
            special_tokens.cls,
            special_tokens.sep,
            special_tokens.mask,
        }
        self.ordinary = np.array([i for i, name in enumerate(names) if name and i not in special], np.int32)
        parts = json.loads(tokenizer.content)
        kind, of_bytes = parts["model"]["type"], (parts["decoder"] or {}).get("type") == "ByteLevel"
        size = special_tokens.vocab_size
        self._continues_v, self._joins_v, self._open_v = (np.zeros(size, bool) for _ in range(3))
        for i in self.ordinary:
            name = names[i]
            self._continues_v[i] = kind == "WordPiece" and name.startswith("##")
            self._joins_v[i] = kind in ("BPE", "Unigram") and _is_letter(name[0], of_bytes)
            self._open_v[i] = _is_letter(name[-1], of_bytes)

    def begins(self, tokens_t: np.ndarray) -> np.ndarray:
        """Whether each token starts a word, (t,): every token that does not continue the letters before
        it."""
        before_t = np.append(False, self._open_v[tokens_t[:-1]])
        return ~(self._continues_v[tokens_t] | (self._joins_v[tokens_t] & before_t))


@dataclass(frozen=True)
class Masking:
    """Chooses about `share` of the tokens of a row to predict, each time the row is drawn.

    `kind` is the unit: a `token`, a whole `word`, or a `span` of words, whose tokens all become `[MASK]`, all
    become random tokens, or are all unchanged (Joshi et al. 2020, section 3.1). Special tokens and padding
    are never chosen. This is a transform of a `DataLoader` and depends only on the seed and the place of the
    row in the run, so any number of hosts choose the same. It adds to a batch of `EncoderRows`, for at most m
    tokens per row:

    - `places` (b, m): the positions of the chosen tokens; `targets` (b, m): the original tokens; padded with
    0;
    - `guessed` (b, m): float32, 1 for a chosen token, 0 for padding.
    """

    words: WordBoundaries
    special_tokens: SpecialTokens
    kind: str
    share: float
    seed: int

    def __call__(self, batch: dict[str, np.ndarray], places: np.ndarray) -> dict[str, np.ndarray]:
        """The batch with some of its `tokens` replaced; `places` (b,) are the rows' places in the run."""
        tokens_bt = batch["tokens"].copy()
        b, t = tokens_bt.shape
        most = max(1, round(self.share * t))
        guessed, chosen = np.zeros((b, most), np.float32), {"places": np.full((b, most), t, np.int32)}
        special = (self.special_tokens.cls, self.special_tokens.sep, self.special_tokens.mask)
        special_bt = np.isin(tokens_bt, special)
        rows, free = np.nonzero((batch["segments"] > 0) & ~special_bt)
        ends_b = np.searchsorted(rows, np.arange(1, b + 1)).tolist()
        fate, anything = np.ones((b, most)), np.zeros((b, most), np.int64)
        for i, (start, end) in enumerate(zip([0, *ends_b], ends_b, strict=False)):
            rng = np.random.default_rng([self.seed, places[i]])
            where, unit = self._choose(batch["tokens"][i], special_bt[i], free[start:end], rng)
            m = len(where)
            chosen["places"][i, :m], guessed[i, :m] = where, 1
            fate[i, :m] = rng.random(m) if unit is None else rng.random(int(unit.max()) + 1)[unit]
            anything[i, :m] = rng.integers(0, len(self.words.ordinary), m)
        chosen["places"].sort(axis=1)
        chosen["places"] %= t  # padding was behind them
        here = np.arange(b)[:, None], chosen["places"]
        chosen["targets"] = np.where(guessed > 0, tokens_bt[here], 0)
        new = np.where(fate < MASKED, self.special_tokens.mask, self.words.ordinary[anything])
        changed = np.nonzero(fate < MASKED + RANDOM)
        tokens_bt[changed[0], chosen["places"][changed]] = new[changed]
        return batch | chosen | {"tokens": tokens_bt, "guessed": guessed}

    def _choose(
        self, tokens_t: np.ndarray, special_t: np.ndarray, free: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The chosen ones of the positions `free` of one row, and the number of the unit of each; None:
        each is one, and they are in any order."""
        if not len(free):
            return free, None
        budget = max(1, round(self.share * len(free)))
        if self.kind == "token":
            return rng.permutation(free)[:budget], None
        begins = self.words.begins(tokens_t) | np.append(True, special_t[:-1])
        word_of = np.cumsum(begins[free]) - begins[free][0]
        count = int(word_of[-1]) + 1
        firsts = np.searchsorted(word_of, np.arange(count + 1))
        span_of = np.full(len(free), -1)
        for number, first in enumerate(rng.permutation(count)):
            left = budget - int((span_of >= 0).sum())
            if not left:
                break
            size = 1 if self.kind == "word" else min(int(rng.geometric(MEAN_SPAN)), LONGEST_SPAN)
            for word in range(first, min(first + size, count)):
                here = slice(firsts[word], firsts[word + 1])
                more = int((span_of[here] < 0).sum())
                if more > left:
                    break
                span_of[here] = np.where(span_of[here] < 0, number, span_of[here])
                left -= more
        chosen = span_of >= 0
        if not chosen.any():  # every word is longer than the budget: choose one token
            return rng.permutation(free)[:1], None
        return free[chosen], span_of[chosen] if self.kind == "span" else None


def _is_letter(character: str, of_bytes: bool) -> bool:
    """Whether a character counts as a letter; every non-ASCII byte does."""
    return character not in BLANKS and (character.isalnum() or (of_bytes and not character.isascii()))
