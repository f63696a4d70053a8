"""Analyses tokens and word embeddings: cosines, neighbours, analogies, contextual vectors of a word, a map.

python launch.py --workdir=runs/word_embedding --mode=analyze --words=king,queen,river --neighbours=river
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commands import add_step, place, text
from transformer.errors import UserError
from workdir.outputs import PICTURES, check_picture

if TYPE_CHECKING:
    from transformer.evaluation.embeddings import Answers
    from transformer.training.experiment import Params
    from workdir.opening import Overrides

MAPPED = 150
"""Without --words a map shows this many words, the first by `WordVectors.common`."""

QUESTIONS = ("tokens", "words", "neighbours", "analogy", "analogies", "contexts", "map")
"""Flags of which at least one is required."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(alone=True)
    add = parser.add_argument
    add("--tokens", type=text, help="a text: list its tokens, with their numbers in the vocabulary")
    add("--words", type=text, help="comma-separated words to compare with each other")
    add("--neighbours", type=text, help="comma-separated words whose nearest neighbours to list")
    add("--analogy", type=text, help="three words a,b,c: list the words nearest to a - b + c")
    add("--analogies", type=place, help="a file of analogies in the format of word2vec's questions-words.txt")
    meaning = "sentences, or a file of sentences: compare the occurrences of each of --words in them"
    add("--contexts", type=text, help=meaning)
    add("--map", type=place, help=f"a file for a map of the embeddings, {', '.join(PICTURES)}")
    add_step(parser)


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints the analyses that the flags ask for."""
    check(flags)
    from workdir.opening import load

    run, params = load(flags.workdir, overrides, flags.step)
    with run.placed():
        print("\n".join(analyze(run.experiment, params, flags)))
    return 0


def check(flags: argparse.Namespace) -> None:
    """Checks the flags before a model is loaded."""
    if all(vars(flags)[name] is None for name in QUESTIONS):
        listed = ", ".join(f"--{name}" for name in QUESTIONS)
        raise UserError(f"--mode=analyze: nothing is asked; give at least one of {listed}")
    if flags.contexts is not None and flags.words is None:
        raise UserError("--contexts: which word? --words=bank, say")
    if flags.contexts is None and flags.map is None and len(_split(flags.words)) == 1:
        word = _split(flags.words)[0]
        raise UserError(f"--words: {word!r} alone; give several, or --neighbours={word}")
    if flags.analogy is not None and len(_split(flags.analogy)) != 3:
        raise UserError(f"--analogy: {flags.analogy!r}; expected three words a,b,c for a - b + c")
    for name in ("words", "neighbours"):
        if (words := vars(flags)[name]) is not None and not _split(words):
            raise UserError(f"--{name}: {words!r}; expected comma-separated words")
    check_picture("--map", flags.map)


def analyze(experiment: Any, params: "Params", flags: argparse.Namespace) -> Iterator[str]:
    """The lines to print.

    Raises:
      UserError: an unknown word, an unreadable file, or a run without such vectors.
    """
    from transformer.evaluation.embeddings import read_questions, word_vectors
    from transformer.visualization.embedding_map import draw_map

    tokenizer = vars(experiment.data).get("tokenizer")
    if tokenizer is None:
        raise UserError(f"--mode=analyze: a run of {experiment.config.experiment} has no word embeddings")
    if flags.tokens is not None:
        yield from _tokens(tokenizer, flags.tokens)
        if all(vars(flags)[name] is None for name in QUESTIONS if name != "tokens"):
            return
    vectors, words = word_vectors(params, tokenizer), _split(flags.words)
    drawn: dict[str, np.ndarray] = {}
    states: dict[str, np.ndarray] = {}  # contextual vectors, not comparable with embeddings
    if flags.contexts is not None:
        for word in words:
            yield from _contexts(experiment, params, word, flags.contexts, states)
    elif words:
        with _naming("words"):
            cosines = vectors.similarity(words)
        drawn |= {word: vectors[word] for word in words}
        yield from _table(words, cosines)
    for word in _split(flags.neighbours):
        with _naming("neighbours"):
            nearest = vectors.nearest(word)
        drawn |= {name: vectors[name] for name in (word, *dict(nearest))}
        yield from _listed(f"nearest to {word}", nearest)
    if flags.analogy is not None:
        a, b, c = _split(flags.analogy)
        with _naming("analogy"):
            nearest = vectors.analogy(a, b, c)
        drawn |= {name: vectors[name] for name in (a, b, c, *dict(nearest[:1]))}
        yield from _listed(f"{a} - {b} + {c}", nearest)
    if flags.analogies is not None:
        with _naming("analogies"):
            questions = read_questions(flags.analogies)
        yield from _scores(vectors.evaluate(questions))
    if flags.map is not None:
        drawn = states or drawn or {word: vectors[word] for word in vectors.common(MAPPED)}
        if len(drawn) < 3:
            raise UserError(f"--map: {len(drawn)} vectors; expected at least 3")
        draw_map(np.stack([*drawn.values()]), [*drawn], Path(flags.map))
        yield f"{flags.map} shows {len(drawn)} vectors"


def _tokens(tokenizer: Any, text: str) -> Iterator[str]:
    from transformer.evaluation.attention_weights import token_names
    from transformer.visualization.attention_maps import visible

    tokens = tokenizer.encode(text)
    yield f"{len(tokens)} tokens of {len(text)} characters:"
    for token, name in zip(tokens, token_names(tokenizer, tokens, {}), strict=True):
        yield f"{token:8}  {visible(name)}"


def occurrences(experiment: Any, params: "Params", word: str, contexts: str) -> list[tuple[str, np.ndarray]]:
    """For each occurrence of a word in sentences (a file or text): the sentence with the word in brackets,
    and the word's contextual vector (d,), the mean over its tokens.

    Raises:
      UserError: fewer than two occurrences, or a model without contextual vectors.
    """
    if experiment.states is None:
        name = experiment.config.experiment
        raise UserError(f"--contexts: a run of {name} has no contextual vectors")
    is_file = "\n" not in contexts and len(contexts) < 255 and Path(contexts).is_file()
    try:
        whole = Path(contexts).read_text(encoding="utf-8") if is_file else contexts
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"--contexts: {contexts}: {why}") from None
    sentences = whole.splitlines() if is_file else re.split(r"(?<=[.!?])\s+|\n", whole)
    examples = []
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
            examples.append((shown, states_td[of_word].mean(axis=0)))
    if len(examples) < 2:
        where = contexts if is_file else f"the text {contexts!r}, which is not a file,"
        raise UserError(f"--contexts: {where} has {word!r} {len(examples)} times; expected at least 2")
    return examples


def _contexts(
    experiment: Any, params: "Params", word: str, contexts: str, states: dict[str, np.ndarray]
) -> Iterator[str]:
    from transformer.evaluation.embeddings import unit

    examples = occurrences(experiment, params, word, contexts)
    names = [f"{word} {number}" for number in range(1, len(examples) + 1)]
    yield from (f"{name}: {sentence}" for name, (sentence, _) in zip(names, examples, strict=True))
    states_nd = unit(np.stack([state_d for _, state_d in examples]))
    states |= zip(names, states_nd, strict=True)
    yield from _table(names, states_nd @ states_nd.T)


def _scores(sections: dict[str, "Answers"]) -> Iterator[str]:
    from transformer.evaluation.embeddings import Answers

    total = sum(sections.values(), Answers(0, 0, 0))
    width = max(map(len, (*sections, "all")))
    yield f"{'section':{width}}  right  asked  accuracy  in vocabulary"
    for name, answers in (*sections.items(), ("all", total)):
        accuracy = f"{answers.accuracy:.1%}" if answers.covered else "none"
        counts = f"{answers.right:5}  {answers.covered:5}  {accuracy:>8}"
        yield f"{name:{width}}  {counts}  {answers.covered / answers.questions:8.1%} of {answers.questions}"
    missing = total.questions - total.covered
    yield f"{missing:,} of {total.questions:,} questions have a word that is not in the vocabulary: skipped"


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
    """Prefixes errors with the name of a flag."""
    try:
        yield
    except UserError as error:
        raise UserError(f"--{flag}: {error}") from None
