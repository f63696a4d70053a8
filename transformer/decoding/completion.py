"""From prompts to what a model writes after them: batches of few shapes, windows, early ends."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from transformer.decoding import batching
from transformer.decoding.sampling import DrawConfig, advance, begin
from transformer.decoding.stepper import Stepper

LOOKED_AT = 16
"""How many tokens are drawn before it is asked again whether a text has ended."""


@dataclass(frozen=True)
class Reading:
    """How a model reads prompts: its end token, and at most `longest` tokens at once.

    With `rolls` those hold a prompt and what is written after it together. When they are full, the older half
    is forgotten and the newer one is read again, as if a text began with it; of a prompt that is longer, the
    last `longest` tokens are read. Without, prompts are no longer than that, and what is written is apart
    from them.
    """

    eos_id: int
    longest: int
    rolls: bool = False


@dataclass
class Text:
    """A prompt, what was written after it, and how much may be."""

    prompt: Sequence[int]
    limit: int
    new: list[int] = field(default_factory=list)
    first: int = 0
    ended: bool = False

    @classmethod
    def of(cls, prompt: Sequence[int], config: DrawConfig, extra_tokens: int) -> "Text":
        """With nothing written yet; 0 extra tokens are any number."""
        most = config.max_new_tokens
        return cls(prompt, min(most, len(prompt) + extra_tokens) if extra_tokens else most)

    def take(self, tokens: Iterable[int], eos_id: int) -> None:
        """Adds tokens up to the end."""
        for token in tokens:
            self.ended = self.ended or token == eos_id or len(self.new) == self.limit
            if self.ended:
                return
            self.new.append(token)
        self.ended = len(self.new) == self.limit

    @property
    def length(self) -> int:
        """Of both together."""
        return len(self.prompt) + len(self.new)


def complete(
    stepper: Stepper,
    prompts: Iterable[Sequence[int]],
    rng: jax.Array,
    config: DrawConfig,
    reading: Reading,
    *,
    extra_tokens: int = 0,
    batch_size: int = 16,
    first: int = 0,
    over: Callable[[Sequence[int], Sequence[int]], bool] | None = None,
) -> Iterator[list[list[int]]]:
    """For each prompt, of at least one token, `config.num_samples` continuations without prompt and end.

    Prompts, numbered from `first`, are taken `batch_size` rows at a time, padded to few different shapes;
    sample j of prompt i is drawn with `fold_in(fold_in(rng, i), j)`, whatever it shares a batch with. `over`
    is asked now and then of a prompt and what was written after it, whether that need not go on. With
    `extra_tokens` a continuation has at most so many tokens more than its prompt.
    """
    most = config.max_new_tokens
    rows = ((i, j, prompt) for i, prompt in enumerate(prompts, first) for j in range(config.num_samples))

    def samples() -> Iterator[list[int]]:
        while batch := list(itertools.islice(rows, batch_size)):
            numbers_b2 = np.array([row[:2] for row in batch], np.uint32)
            texts = [Text.of(prompt, config, extra_tokens) for _, _, prompt in batch]
            at_once = LOOKED_AT if over else most
            for _ in write(stepper, texts, numbers_b2, rng, config, reading, at_once, batch_size):
                for text in texts if over else ():
                    text.ended = text.ended or over(text.prompt, text.new)  # type: ignore[misc]
            yield from (text.new for text in texts)

    def grouped() -> Iterator[list[list[int]]]:
        flat = samples()
        while group := list(itertools.islice(flat, config.num_samples)):
            yield group

    return grouped()


def stream(
    stepper: Stepper,
    prompt: Sequence[int],
    rng: jax.Array,
    config: DrawConfig,
    reading: Reading,
    *,
    extra_tokens: int = 0,
) -> Iterator[int]:
    """The tokens of the first of what `complete` gives for a single prompt, each as soon as it is drawn."""
    text, shown = Text.of(prompt, config, extra_tokens), 0
    for _ in write(stepper, [text], np.zeros((1, 2), np.uint32), rng, config, reading, 1, 1):
        yield from text.new[shown:]
        shown = len(text.new)


def write(
    stepper: Stepper,
    texts: Sequence[Text],
    numbers_b2: np.ndarray,
    rng: jax.Array,
    config: DrawConfig,
    reading: Reading,
    at_once: int,
    batch_size: int,
) -> Iterator[None]:
    """Goes on with all texts until each has ended, and comes back after every `at_once` tokens; whoever
    waits may set `ended` meanwhile. What a text is given depends on itself and its numbers alone."""
    eos_id, window = reading.eos_id, reading.longest
    room = min(config.max_new_tokens, window) if reading.rolls else config.max_new_tokens
    options = config.options | {"eos_id": eos_id}
    while live := [i for i, text in enumerate(texts) if not text.ended]:
        for i in live if reading.rolls else ():
            text = texts[i]
            kept = min(window, text.length) if not text.new else max(window // 2, 1)
            text.first = text.length - kept
        # Rows beyond the last are copies of it, and end with it.
        rows = batching.fill(live, batch_size)
        group = [texts[i] for i in rows]
        views = [[*text.prompt, *text.new][text.first :] for text in group]
        limits = [text.limit - len(text.new) for text in group]
        if reading.rolls:
            limits = [min(n, window + 1 - len(view)) for n, view in zip(limits, views, strict=True)]
        before = [len(text.new) for text in group]
        rngs_b = _row_rngs(rng, *numbers_b2[rows].T)
        drawn = begin(
            stepper,
            *batching.pad(views, window, eos_id),
            rngs_b,
            room=room,
            limits_b=np.array(limits, np.int32),
            places_b=np.array([text.length for text in group], np.int32),
            **options,
        )
        new_bn, first = np.asarray(drawn.token_b)[:, None], 1
        while True:
            for i, n, limit, row_n in zip(rows[: len(live)], before, limits, new_bn, strict=False):
                texts[i].take(row_n[: max(0, n + limit - len(texts[i].new))].tolist(), eos_id)
            yield
            over_b = np.array([text.ended for text in group])
            if np.all(over_b | np.asarray(drawn.done_b)):
                break
            if over_b.any():
                drawn = drawn.replace(done_b=jnp.asarray(over_b) | drawn.done_b)  # type: ignore[attr-defined]
            n = min(at_once, room - first)
            new_bn, drawn = advance(stepper, drawn, rngs_b, n=n, **options)
            new_bn, first = np.asarray(new_bn), first + n


@jax.jit
def _row_rngs(rng: jax.Array, prompt_b: jax.Array, sample_b: jax.Array) -> jax.Array:
    fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.vmap(jax.random.fold_in)(fold_in(rng, prompt_b), sample_b)
