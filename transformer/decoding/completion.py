"""Completion of prompts: batches of few shapes, rolling context windows, stop strings."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from transformer.decoding import generation, speculative
from transformer.decoding.generation import Ends
from transformer.decoding.sampling import DecodingConfig
from transformer.decoding.speculative import SpeculativePair
from transformer.decoding.stepper import Stepper
from transformer.decoding.stops import cut, ends, until_stop
from transformer.devices import on_host

STOP_CHECK_EVERY = 16
"""Tokens that are drawn between two checks for stop strings."""

FIRST_ROOM = 256
"""New tokens that a cache has room for at first; when it is full, twice as many. A step reads the whole
cache, and many texts end long before their limit."""


class Detokenizer(Protocol):
    """Decodes tokens that follow others."""

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text that `ids` add to that of `before`."""
        ...

    def stream(self, ids: Iterable[int], before: Sequence[int] = ()) -> Iterator[str]:
        """`decode_after` in pieces, as the ids arrive."""
        ...


@dataclass(frozen=True)
class ContextWindow:
    """The end token, `further` tokens that end a completion, and the number of tokens in the context of a
    model.

    A `rolling` window of `length` tokens holds prompt and completion: the last `length` tokens of a longer
    prompt are read, and when the window is full its older half is dropped and the newer half is read again as
    a new prompt. Otherwise `length` is for the prompt only.
    """

    eos_id: int
    length: int
    rolling: bool = False
    further: tuple[int, ...] = ()

    @property
    def ends(self) -> Ends:
        """The tokens that end a completion, as the decoding loop takes them."""
        return jnp.array([self.eos_id, *self.further], jnp.int32) if self.further else self.eos_id

    def room(self, read: int, count: int) -> int:
        """The number of `count` new tokens that can be drawn after `read` tokens; the last token in a
        rolling window is never read."""
        return min(count, self.length + 1 - read) if self.rolling else count


@dataclass
class Completion:
    """A prompt, its new tokens so far, and their limit; `number` is (prompt, sample), which seeds its random
    numbers."""

    prompt: Sequence[int]
    number: tuple[int, int]
    limit: int
    new: list[int] = dataclasses.field(default_factory=list)
    ended: bool = False

    def take(self, tokens: Iterable[int], window: ContextWindow) -> None:
        """Appends tokens up to one that ends the completion, or the limit."""
        for token in tokens:
            self.ended = self.ended or token == window.eos_id or token in window.further
            if self.ended:
                return
            self.new.append(token)
            self.ended = len(self.new) == self.limit

    def view(self, window: ContextWindow) -> list[int]:
        """The tokens that the model reads: all, or those in the rolling window."""
        tokens = [*self.prompt, *self.new]
        if not window.rolling:
            return tokens
        return tokens[-(max(window.length // 2, 1) if self.new else window.length) :]


@dataclass(frozen=True)
class TextGenerator:
    """Samples texts, which end before the first stop string of `config.stop`.

    With `continues` a text is decoded as the continuation of its prompt: tokenizers may decode the beginning
    of a text in another way. With `extra_tokens` a text may have at most this many tokens more than its
    prompt.
    """

    stepper: Stepper | SpeculativePair
    tokenizer: Detokenizer
    config: DecodingConfig
    window: ContextWindow
    continues: bool = False
    extra_tokens: int = 0
    batch_size: int = 16

    def generate(
        self, prompts: Iterable[Sequence[int]], rng: jax.Array, first: int = 0
    ) -> Iterator[list[str]]:
        """`config.num_samples` texts for each tokenised prompt; `first` is the number of the first prompt."""
        for group in self.complete(prompts, rng, first):
            texts = [self._decode(text) for text in group]
            yield [cut(text, self.config.stop) for text in texts] if self.config.stop else texts

    def stream(self, prompt: Sequence[int], rng: jax.Array) -> Iterator[str]:
        """The first text of `generate` for a single prompt, in pieces as it is sampled."""
        before = prompt if self.continues else ()
        return until_stop(self.tokenizer.stream(self.stream_tokens(prompt, rng), before), self.config.stop)

    def complete(
        self, prompts: Iterable[Sequence[int]], rng: jax.Array, first: int = 0
    ) -> Iterator[list[Completion]]:
        """`config.num_samples` completions for each prompt of at least one token.

        Prompts are numbered from `first` and decoded in batches of `batch_size` rows, padded to few shapes.
        Sample j of prompt i is drawn with `fold_in(fold_in(rng, i), j)`, independent of the batch.
        """
        samples = self.config.num_samples
        rows = (
            self._begun(prompt, (i, j)) for i, prompt in enumerate(prompts, first) for j in range(samples)
        )
        at_once = STOP_CHECK_EVERY if self.config.stop else self.config.max_new_tokens
        done: list[Completion] = []
        while texts := list(itertools.islice(rows, self.batch_size)):
            for _ in self.decode_batch(texts, rng, at_once):
                if self.config.stop:
                    self._end_stopped(texts)
            done += texts
            while len(done) >= samples:
                yield done[:samples]
                done = done[samples:]

    def stream_tokens(self, prompt: Sequence[int], rng: jax.Array) -> Iterator[int]:
        """The tokens of the first completion of a single prompt, as they are drawn."""
        text, shown = self._begun(prompt, (0, 0)), 0
        for _ in self.decode_batch([text], rng, at_once=1):
            yield from text.new[shown:]
            shown = len(text.new)

    def has_stopped(self, text: Completion) -> bool:
        """Whether the text has a stop string, and no further token can change the text before it."""
        return ends(self._decode(text), self.config.stop)

    def decode_batch(self, texts: Sequence[Completion], rng: jax.Array, at_once: int) -> Iterator[None]:
        """Decodes all texts until each has ended, and yields after every `at_once` tokens or fewer (a
        speculative pair: or a few more); the caller may then set `ended`. The tokens of a text depend only on
        it and its number."""
        while live := [text for text in texts if not text.ended]:
            yield from self._decode_window(live, rng, at_once)

    def _decode_window(self, texts: list[Completion], rng: jax.Array, at_once: int) -> Iterator[None]:
        """`decode_batch` until each text has ended or fills its window."""
        window, room = self.window, self.window.room(1, self.config.max_new_tokens)
        options = self.config.options | {"eos_id": window.ends}
        group = generation.fill(texts, self.batch_size)  # padding rows are copies of the last one
        rngs_b = _row_rngs(rng, *np.array([text.number for text in group], np.uint32).T)
        views = [text.view(window) for text in group]
        limits = [window.room(len(view), t.limit - len(t.new)) for view, t in zip(views, group, strict=True)]
        positions = [len(text.prompt) + len(text.new) for text in group]
        rows = {"limits_b": np.array(limits, np.int32), "positions_b": np.array(positions, np.int32)}
        prompts = generation.pad(views, window.length, window.eos_id)
        capacity = min(room, FIRST_ROOM)
        n = min(at_once, capacity - 1)
        state = generation.begin(self.stepper, *prompts, rngs_b, room=capacity, **rows, **options)
        advance = speculative.advance if isinstance(self.stepper, SpeculativePair) else generation.advance
        new_bn, index = on_host(state.token_b)[:, None], 0
        while True:
            count = int(state.index) - index
            for text, limit, new_n in zip(texts, limits, on_host(new_bn), strict=False):
                text.take(new_n[: min(count, max(0, limit - index))].tolist(), window)
            index += count
            yield
            ended_b = np.array([text.ended for text in group])
            if np.all(ended_b | on_host(state.done_b)):
                return
            state = dataclasses.replace(state, done_b=jnp.asarray(ended_b) | state.done_b)
            while capacity < min(index + n, room):  # twice after many drafted tokens
                more = min(room, 2 * capacity) - capacity
                state, capacity = generation.grow(self.stepper, state, more=more), capacity + more
            new_bn, state = advance(self.stepper, state, rngs_b, n=n, **options)

    def _begun(self, prompt: Sequence[int], number: tuple[int, int]) -> Completion:
        most = self.config.max_new_tokens
        limit = min(most, len(prompt) + self.extra_tokens) if self.extra_tokens else most
        return Completion(prompt, number, limit)

    def _end_stopped(self, texts: Iterable[Completion]) -> None:
        for text in texts:
            text.ended = text.ended or self.has_stopped(text)

    def _decode(self, text: Completion) -> str:
        return self.tokenizer.decode_after(text.prompt if self.continues else (), text.new)


@jax.jit
def _row_rngs(rng: jax.Array, prompt_b: jax.Array, sample_b: jax.Array) -> jax.Array:
    fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.vmap(jax.random.fold_in)(fold_in(rng, prompt_b), sample_b)
