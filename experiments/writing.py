"""What a model writes after prompts, as text."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import jax

from transformer.data.tokenizers import Tokenizer
from transformer.decoding import stops
from transformer.decoding.completion import Reading, complete, stream
from transformer.decoding.sampling import DrawConfig
from transformer.decoding.stepper import Stepper


@dataclasses.dataclass(frozen=True)
class Writer:
    """Draws texts, which end before the first of `config.stop`.

    `continues` says whether what is written goes on where a prompt ends: then it is the text that it adds to
    the prompt's, for a tokenizer may decode what begins a text otherwise than what stands inside one.
    """

    stepper: Stepper
    tokenizer: Tokenizer
    config: DrawConfig
    reading: Reading
    continues: bool
    extra_tokens: int = 0
    batch_size: int = 16

    def answers(
        self, prompts: Iterable[Sequence[int]], rng: jax.Array, first: int = 0
    ) -> Iterator[list[str]]:
        """For each prompt, of tokens, `config.num_samples` texts; `first` is the first one's number."""
        waiting: list[Sequence[int]] = []

        def noted() -> Iterator[Sequence[int]]:
            for prompt in prompts:
                waiting.append(prompt)
                yield prompt

        found = complete(
            self.stepper,
            noted(),
            rng,
            self.config,
            self.reading,
            extra_tokens=self.extra_tokens,
            batch_size=self.batch_size,
            first=first,
            over=self._over if self.config.stop else None,
        )
        for group in found:
            prompt = waiting.pop(0)
            yield [stops.cut(self._decode(prompt, new), self.config.stop) for new in group]

    def pieces(self, prompt: Sequence[int], rng: jax.Array) -> Iterator[str]:
        """The first of `answers` for a single prompt, in pieces, as it is drawn."""
        ids = stream(self.stepper, prompt, rng, self.config, self.reading, extra_tokens=self.extra_tokens)
        before = prompt if self.continues else ()
        return stops.until(self.tokenizer.stream(ids, before), self.config.stop)

    def _over(self, prompt: Sequence[int], new: Sequence[int]) -> bool:
        return stops.ends(self._decode(prompt, new), self.config.stop)

    def _decode(self, prompt: Sequence[int], new: Sequence[int]) -> str:
        return self.tokenizer.decode_after(prompt if self.continues else (), new)
