"""Masked language modelling: which tokens are to be guessed, and what stands in their place."""

import json
from dataclasses import dataclass

import numpy as np

from transformer.data.special_tokens import SpecialTokens
from transformer.data.tokenizers import Tokenizer

BLANKS = {"Ġ", "Ċ", "ĉ", "č", "▁"}
"""The characters by which tokenizers write a space, the ends of lines and a tab at a token's beginning."""

MASKED, RANDOM = 0.8, 0.1
"""Of the chosen tokens, the share that becomes `[MASK]` and the share that becomes any token; the others
stay (Devlin et al. 2019, section 3.1)."""

MEAN_SPAN, LONGEST_SPAN = 0.2, 10
"""The rate of the geometric distribution of spans' lengths in words, and their cut (Joshi et al. 2020,
SpanBERT, section 3.1)."""


class WordBoundaries:
    """Tables of which of a tokenizer's tokens begin words: tokens are often parts of words."""

    def __init__(self, tokenizer: Tokenizer, special_tokens: SpecialTokens) -> None:
        """`ordinary` has the ids of all tokens that stand for text."""
        names = [tokenizer.name(i) for i in range(tokenizer.vocab_size)]
        special = {tokenizer.eos_id, special_tokens.cls, special_tokens.sep, special_tokens.mask}
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
        """Whether each token begins a word (t,): it does unless it continues the letters before it."""
        before_t = np.append(False, self._open_v[tokens_t[:-1]])
        return ~(self._continues_v[tokens_t] | (self._joins_v[tokens_t] & before_t))


@dataclass(frozen=True)
class Masking:
    """Chooses about `share` of a row's tokens to be guessed, anew whenever the row is drawn.

    `kind` says what is chosen at once: a `token`, a whole `word`, or a `span` of words, whose tokens all
    become `[MASK]`, or all any token, or all stay (Joshi et al. 2020, section 3.1). Special tokens and
    padding never are. It is a `DataLoader`'s transform and a function of the seed and the place in the run
    alone, so that any number of hosts choose the same. To a batch of `EncoderRows` it adds, for the m tokens
    that may be chosen in a row:

    - `places` (b, m): where they stand; `targets` (b, m): which tokens they are; 0 where there are fewer;
    - `guessed` (b, m): float32, 1 where there is one.
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
        chosen = {name: np.zeros((b, most), np.int32) for name in ("places", "targets")}
        guessed = np.zeros((b, most), np.float32)
        for i in range(b):
            rng = np.random.default_rng([self.seed, places[i]])
            where, span = self._choose(batch["tokens"][i], batch["segments"][i], rng)
            where, span = where[:most], span[:most]
            m = len(where)
            chosen["places"][i, :m] = where
            chosen["targets"][i, :m] = tokens_bt[i, where]
            guessed[i, :m] = 1
            fate = rng.random(int(span.max(initial=-1)) + 1)[span]
            anything = self.words.ordinary[rng.integers(0, len(self.words.ordinary), m)]
            replaced = np.where(fate < MASKED, self.special_tokens.mask, anything)
            tokens_bt[i, where] = np.where(fate < MASKED + RANDOM, replaced, tokens_bt[i, where])
        return batch | chosen | {"tokens": tokens_bt, "guessed": guessed}

    def _choose(
        self, tokens_t: np.ndarray, segments_t: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The places to be guessed in one row, in order, and a number for each: those that share one have the
        same fate."""
        special = np.isin(
            tokens_t, (self.special_tokens.cls, self.special_tokens.sep, self.special_tokens.mask)
        )
        free = np.flatnonzero((segments_t > 0) & ~special)
        if not len(free):
            return free, free
        budget = max(1, round(self.share * len(free)))
        if self.kind == "token":
            return np.sort(rng.permutation(free)[:budget]), np.arange(budget)
        begins = self.words.begins(tokens_t) | np.append(True, special[:-1])
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
        taken = span_of >= 0
        if not taken.any():  # a row all of whose words are longer than the budget has one token guessed
            return rng.permutation(free)[:1], np.zeros(1, int)
        return free[taken], span_of[taken] if self.kind == "span" else np.arange(taken.sum())


def _is_letter(character: str, of_bytes: bool) -> bool:
    """Every byte past ASCII is a part of some character, which counts as a letter."""
    return character not in BLANKS and (character.isalnum() or (of_bytes and not character.isascii()))
