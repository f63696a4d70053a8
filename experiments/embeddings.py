"""What a trained model's embeddings say: `--mode=analyze`, and the same from a notebook."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.evaluation.embeddings import Answers, WordVectors, read_questions, unit
from transformer.training.experiment import Contextual, Params
from transformer.visualization.embeddings import draw_map

MAPPED, LETTERS = 150, 4
"""A map for which no words are named has so many of the vocabulary's first ones with so many letters."""

PADDED = 64
"""Tokens: of what the lengths of texts are multiples."""


@dataclass(frozen=True)
class Request:
    """What is asked about the embeddings of a run, each part as text; None: not asked.

    words: "king,queen", their cosines with one another; neighbours: "python", the nearest to each;
    analogy: "king,man,woman", the nearest to king - man + woman; analogies: a file of questions; contexts: a
    file of sentences, one a line, or sentences, in which each of `words` is compared with itself; map: a
    picture (PNG, SVG or PDF) to be drawn of the words, the neighbours or the contexts.
    """

    words: str | None = None
    neighbours: str | None = None
    analogy: str | None = None
    analogies: str | None = None
    contexts: str | None = None
    map: str | None = None

    def __post_init__(self) -> None:
        """Refuses what needs no model to be seen as wrong."""
        if all(getattr(self, field.name) is None for field in fields(self)):
            flags = ", ".join(f"--{field.name}" for field in fields(self))
            raise UserError(f"--mode=analyze: nothing is asked; give at least one of {flags}")
        if self.contexts is not None and self.words is None:
            raise UserError("--contexts: which word? --words=bank, say")
        if self.contexts is None and self.map is None and len(_split(self.words)) == 1:
            word = _split(self.words)[0]
            raise UserError(f"--words: {word!r} alone; give several, or --neighbours={word}")
        if self.analogy is not None and len(_split(self.analogy)) != 3:
            raise UserError(f"--analogy: {self.analogy!r}; expected three words a,b,c for a - b + c")
        for name in ("words", "neighbours"):
            if (text := getattr(self, name)) is not None and not _split(text):
                raise UserError(f"--{name}: {text!r}; expected words with commas between")
        if self.map is not None:
            endings = (".png", ".svg", ".pdf")
            if not self.map.endswith(endings):
                raise UserError(f"--map: {self.map!r}; expected a name that ends with {', '.join(endings)}")
            if not Path(self.map).parent.is_dir():
                raise UserError(f"--map: there is no folder {str(Path(self.map).parent)!r}")


def analyze(experiment: Any, params: Params, request: Request) -> Iterator[str]:
    """The answers, in lines.

    Raises:
      UserError: a word that is not there, a file that cannot be read, a run that has no such vectors.
    """
    vectors, words = word_vectors(experiment, params), _split(request.words)
    drawn: dict[str, np.ndarray] = {}
    states: dict[str, np.ndarray] = {}  # which are not to be compared with the others
    if request.contexts is not None:
        for word in words:
            yield from _contexts(experiment, params, word, request.contexts, states)
    elif words:
        with _naming("words"):
            cosines = vectors.similarity(words)
        drawn |= {word: vectors[word] for word in words}
        yield from _table(words, cosines)
    for word in _split(request.neighbours):
        with _naming("neighbours"):
            nearest = vectors.nearest(word)
        drawn |= {each: vectors[each] for each in (word, *dict(nearest))}
        yield from _listed(f"nearest to {word}", nearest)
    if request.analogy is not None:
        a, b, c = _split(request.analogy)
        with _naming("analogy"):
            nearest = vectors.analogy(a, b, c)
        drawn |= {each: vectors[each] for each in (a, b, c, *dict(nearest[:1]))}
        yield from _listed(f"{a} - {b} + {c}", nearest)
    if request.analogies is not None:
        with _naming("analogies"):
            questions = read_questions(request.analogies)
        yield from _scores(vectors.evaluate(questions))
    if request.map is not None:
        common = [word for word in vectors.words if word.isalpha() and len(word) >= LETTERS][:MAPPED]
        drawn = states or drawn or {word: vectors[word] for word in common}
        if len(drawn) < 3:
            raise UserError(f"--map: {len(drawn)} vectors; expected at least 3")
        draw_map(np.stack([*drawn.values()]), [*drawn], Path(request.map))
        yield f"{request.map} shows {len(drawn)} vectors"


def word_vectors(experiment: Any, params: Params) -> WordVectors:
    """The input embeddings of the words, and pieces of words, that are one token of the model each.

    Raises:
      UserError: the model reads no words.
    """
    tokenizer = vars(experiment.data).get("tokenizer")
    leaves = jax.tree_util.tree_leaves_with_path(params)
    tables = [leaf for path, leaf in leaves if [key.key for key in path][-2:] == ["embedding", "table"]]
    if not tables or tokenizer is None:
        raise UserError(f"--mode=analyze: a run of {experiment.config.experiment} has no embeddings of words")
    words = tokenizer.words()
    return WordVectors([*words], _whole(tables[0])[[*words.values()]], tokenizer.normalize)


def occurrences(experiment: Any, params: Params, word: str, contexts: str) -> list[tuple[str, np.ndarray]]:
    """Each occurrence of a word in sentences (a file of them, or text): the sentence with the word in
    brackets, and the word's contextual vector (d,), the mean over its tokens.

    Raises:
      UserError: fewer than two occurrences, or a run whose vectors depend on no context.
    """
    if not isinstance(experiment, Contextual):
        name = experiment.config.experiment
        raise UserError(f"--contexts: a run of {name} has no vectors that depend on a context")
    is_file = "\n" not in contexts and len(contexts) < 255 and Path(contexts).is_file()
    try:
        text = Path(contexts).read_text(encoding="utf-8") if is_file else contexts
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--contexts: {contexts}: {getattr(error, 'strerror', 'not UTF-8')}") from None
    sentences = text.splitlines() if is_file else re.split(r"(?<=[.!?])\s+|\n", text)
    found = []
    for sentence in sentences:
        matches = list(re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", sentence, re.IGNORECASE))
        if not matches:
            continue
        spans, states_td = experiment.states(params, sentence)
        for match in matches:
            start, end = match.span()
            of_word = [i for i, (first, last) in enumerate(spans) if first < end and last > start]
            if not of_word:
                raise UserError(
                    f"--contexts: a sentence of {len(sentence):,} characters is too long for the model"
                )
            shown = f"{sentence[:start]}[{sentence[start:end]}]{sentence[end:]}"
            found.append((shown, states_td[of_word].mean(axis=0)))
    if len(found) < 2:
        where = contexts if is_file else f"the text {contexts!r}, which is no file,"
        raise UserError(f"--contexts: {where} has {word!r} {len(found)} times; expected at least 2")
    return found


def states_of(
    hidden: Callable[[np.ndarray, np.ndarray], jax.Array],
    tokenizer: Tokenizer,
    text: str,
    *,
    before: Sequence[int],
    after: Sequence[int] = (),
    most: int,
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """`Contextual.states` by `hidden`, which takes tokens and segments (1, t) to states (1, t, d): of a text
    between the tokens `before` and `after` it, together no more than `most`. Rows are padded to a multiple of
    `PADDED`, so that few lengths are compiled."""
    ids, spans = tokenizer.encode_with_spans(text)
    kept = min(len(ids), most - len(before) - len(after))
    tokens = [*before, *ids[:kept], *after]
    place_t = np.arange(min(-(-len(tokens) // PADDED) * PADDED, most))
    tokens_t = np.zeros(len(place_t), np.int32)
    tokens_t[: len(tokens)] = tokens
    x_btd = hidden(tokens_t[None], (place_t < len(tokens)).astype(np.int32)[None])
    return spans[:kept], np.asarray(x_btd[0, len(before) : len(before) + kept], np.float32)


def _whole(table_vd: Any) -> np.ndarray:
    """An array that may lie in parts on the devices of several processes, which all ask for it."""
    if isinstance(table_vd, jax.Array) and not table_vd.is_fully_addressable:
        everywhere = NamedSharding(table_vd.sharding.mesh, PartitionSpec())  # type: ignore[attr-defined]
        table_vd = jax.jit(lambda x: x, out_shardings=everywhere)(table_vd)
    return np.asarray(table_vd)


def _contexts(
    experiment: Any, params: Params, word: str, contexts: str, states: dict[str, np.ndarray]
) -> Iterator[str]:
    found = occurrences(experiment, params, word, contexts)
    names = [f"{word} {number}" for number in range(1, len(found) + 1)]
    yield from (f"{name}: {sentence}" for name, (sentence, _) in zip(names, found, strict=True))
    states_nd = unit(np.stack([state_d for _, state_d in found]))
    states |= zip(names, states_nd, strict=True)
    yield from _table(names, states_nd @ states_nd.T)


def _scores(sections: dict[str, Answers]) -> Iterator[str]:
    total = sum(sections.values(), Answers(0, 0, 0))
    width = max(map(len, (*sections, "all")))
    yield f"{'section':{width}}  right  asked  accuracy  in vocabulary"
    for name, each in (*sections.items(), ("all", total)):
        counts = f"{each.right:5}  {each.covered:5}  {each.accuracy:8.1%}"
        yield f"{name:{width}}  {counts}  {each.covered / each.questions:8.1%} of {each.questions}"
    missing = total.questions - total.covered
    yield f"{missing:,} of {total.questions:,} questions have a word that is not in the vocabulary: not asked"


def _table(names: Sequence[str], cosines_nn: np.ndarray) -> Iterator[str]:
    width = max(6, *map(len, names))
    yield " ".join([" " * width, *(f"{name:>{width}}" for name in names)])
    for name, row in zip(names, cosines_nn, strict=True):
        yield " ".join([f"{name:>{width}}", *(f"{cosine:{width}.3f}" for cosine in row)])


def _listed(title: str, nearest: Sequence[tuple[str, float]]) -> Iterator[str]:
    yield f"{title}:"
    yield from (f"{cosine:8.3f}  {word}" for word, cosine in nearest)


def _split(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


@contextmanager
def _naming(flag: str) -> Iterator[None]:
    """Errors inside begin with the flag that they are about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"--{flag}: {error}") from None
