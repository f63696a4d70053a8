"""Word vectors of a model: similarities, nearest neighbours, analogies; and contextual token vectors."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.devices import on_host
from transformer.errors import UserError

Questions = Mapping[str, Sequence[tuple[str, str, str, str]]]
"""Section -> questions (a, b, c, d): "a is to b as c is to d"."""

AT_ONCE = 256
"""Questions whose similarities to all words are in memory at once."""


PAD_TO = 64
"""Texts are padded to a multiple of this length, so that few shapes are compiled."""


@dataclass(frozen=True)
class Answers:
    """The number of questions in a section, of those with all words in the vocabulary, and of correct
    answers."""

    questions: int
    covered: int
    right: int

    def __add__(self, other: "Answers") -> "Answers":
        return Answers(
            self.questions + other.questions, self.covered + other.covered, self.right + other.right
        )

    @property
    def accuracy(self) -> float:
        """right / covered; NaN if nothing is covered."""
        return self.right / self.covered if self.covered else float("nan")


LETTERS = 4
"""Letters of the words on a map: most shorter ones are names of variables or function words."""


class WordVectors:
    """Words and their vectors (v, d), compared by cosine similarity.

    `units` (v, d), float32, are the vectors divided by their lengths (zeros stay zeros). `normalize` is
    applied to every word that is looked up. All methods raise a `UserError` for an unknown word, with similar
    words.
    """

    def __init__(
        self, words: Sequence[str], vectors_vd: np.ndarray, normalize: Callable[[str], str] = str
    ) -> None:
        """Row i of `vectors_vd` is the vector of `words[i]`; raises ValueError on a mismatch."""
        vectors_vd = np.asarray(vectors_vd, np.float32)
        self.words = list(words)
        self._places = {word: place for place, word in enumerate(self.words)}
        self._normalize = normalize
        if vectors_vd.shape[:1] != (len(self._places),):
            raise ValueError(f"{len(self._places)} different words, vectors {vectors_vd.shape}")
        self.units = unit(vectors_vd)

    def __contains__(self, word: str) -> bool:
        return self._normalize(word) in self._places

    def __getitem__(self, word: str) -> np.ndarray:
        """The unit vector (d,) of a word."""
        return self.units[self._place(word)]

    def common(self, count: int) -> list[str]:
        """The first `count` words of at least `LETTERS` letters, in the order of the vocabulary."""
        return [word for word in self.words if word.isalpha() and len(word) >= LETTERS][:count]

    def similarity(self, words: Sequence[str]) -> np.ndarray:
        """cos(w_i, w_j) of all pairs of n words: (n, n)."""
        units_nd = np.stack([self[word] for word in words])
        return units_nd @ units_nd.T

    def nearest(
        self, target: str | np.ndarray, count: int = 10, exclude: Iterable[str] = ()
    ) -> list[tuple[str, float]]:
        """The `count` words nearest to another word or to a vector (d,), nearest first, with their
        cosines."""
        itself = [target] if isinstance(target, str) else []
        vector_d = self[target] if isinstance(target, str) else np.asarray(target, np.float32)
        cosine_v = self.units @ unit(vector_d)
        left_out = [self._place(word) for word in (*itself, *exclude)]
        cosine_v[left_out] = -np.inf
        best = np.argsort(-cosine_v, kind="stable")[: min(count, len(self.words) - len(set(left_out)))]
        return [(self.words[place], float(cosine_v[place])) for place in best]

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[tuple[str, float]]:
        """The words nearest to a - b + c (of unit vectors), without a, b and c: king - man + woman.

        Source: Mikolov et al. 2013c, "Linguistic Regularities in Continuous Space Word Representations",
        section 4.
        """
        return self.nearest(self[a] - self[b] + self[c], count, exclude=(a, b, c))

    def evaluate(self, questions: Questions) -> dict[str, Answers]:
        """The counts of each section. A question is correct if d is the nearest word to b - a + c except a, b
        and c; questions with an unknown word are not covered."""
        answers = {}
        for section, analogies in questions.items():
            known = np.array(
                [
                    [self._place(word) for word in question]
                    for question in analogies
                    if all(word in self for word in question)
                ]
            ).reshape(-1, 4)
            right = 0
            for start in range(0, len(known), AT_ONCE):
                a_q, b_q, c_q, d_q = known[start : start + AT_ONCE].T
                cosine_qv = (self.units[b_q] - self.units[a_q] + self.units[c_q]) @ self.units.T
                np.put_along_axis(cosine_qv, np.stack([a_q, b_q, c_q], axis=1), -np.inf, axis=1)
                right += int(np.sum(cosine_qv.argmax(axis=1) == d_q))
            answers[section] = Answers(len(analogies), len(known), right)
        return answers

    def _place(self, word: str) -> int:
        place = self._places.get(self._normalize(word))
        if place is None:
            near = difflib.get_close_matches(self._normalize(word), self.words, 3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "and nothing like it"
            raise UserError(f"{word!r} is not one of the {len(self.words):,} words of the vocabulary; {hint}")
        return place


def unit(vectors: np.ndarray) -> np.ndarray:
    """x / |x| over the last axis; zeros stay zeros."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)


def read_questions(path: str | Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Reads analogies in the format of word2vec's `questions-words.txt`: lines ": section", each followed by
    lines of four words, "a b c d".

    Raises:
      UserError: no such file, or a line in another format.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"{path}: cannot be read ({why})") from None
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    section = ""
    for number, line in enumerate(lines, 1):
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif len(words) == 4:
            sections.setdefault(section, []).append((words[0], words[1], words[2], words[3]))
        elif words:
            raise UserError(f"{path}:{number}: {len(words)} words; expected four, or ': section'")
    if not sections:
        raise UserError(f"{path}: no questions in it; expected lines of four words")
    return sections


def word_vectors(params: Any, tokenizer: Tokenizer) -> WordVectors:
    """The input embeddings of all words and subwords that are single tokens.

    Raises:
      ValueError: the model has no embedding table.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    tables = [leaf for path, leaf in leaves if [key.key for key in path][-2:] == ["embedding", "table"]]
    if not tables:
        raise ValueError("no parameter is called embedding/table")
    words = tokenizer.words()
    return WordVectors([*words], on_host(tables[0])[[*words.values()]], tokenizer.normalize)


def states_of(
    hidden: Callable[[np.ndarray, np.ndarray], jax.Array],
    tokenizer: Tokenizer,
    text: str,
    *,
    before: Sequence[int],
    after: Sequence[int] = (),
    most: int,
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Contextual vectors of a text: the character span (start, end) of each of its n tokens, and the states
    (n, d) by `hidden`, which maps tokens and segments (1, t) to states (1, t, d).

    The model reads the tokens `before`, the text and the tokens `after`. The text is truncated so that these
    are at most `most` tokens.
    """
    ids, spans = tokenizer.encode_with_spans(text)
    count = min(len(ids), most - len(before) - len(after))
    tokens = [*before, *ids[:count], *after]
    place_t = np.arange(min(-(-len(tokens) // PAD_TO) * PAD_TO, most))
    tokens_t = np.zeros(len(place_t), np.int32)
    tokens_t[: len(tokens)] = tokens
    x_btd = hidden(tokens_t[None], (place_t < len(tokens)).astype(np.int32)[None])
    return spans[:count], on_host(x_btd)[0, len(before) : len(before) + count].astype(np.float32)
