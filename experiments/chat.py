"""Fine-tuning on conversations: predict the assistant's answers from the messages before them."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from experiments.language_modeling import LanguageModeling, LanguageModelingConfig
from transformer.data.chat.chat import ChatData, ChatDataConfig
from transformer.data.chat.chat_template import Message, conversation
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.evaluation.scoring import Row
from transformer.training.experiment import Params


@dataclass(frozen=True)
class ChatConfig(LanguageModelingConfig):
    """The config of a run: one group of keys for each part."""

    data: ChatDataConfig  # type: ignore[assignment]

    scheduled: ClassVar[tuple[str, ...]] = ("batch_size", "window")


class Chat(LanguageModeling):
    """A decoder trained on packed conversations; the loss is -log p(token | those before it) of the tokens of
    answers and of their ends.

    A text to predict is a message of the user, or a conversation as JSON, whose last messages are answered.
    """

    Config: type[Any] = ChatConfig
    Data: type[ChatData] = ChatData
    continues = False

    def __init__(self, config: Any, tokenizer: Tokenizer | None = None) -> None:
        """`tokenizer` is that of the run folder; by default that of the config."""
        self.config, self.data = config, self.Data(config.data, tokenizer)
        self.model = config.model.build(self.data.tokenizer.vocab_size)

    def sample(self, params: Params) -> str:
        """The configured prompt and its answers."""
        answers = next(self.predict(params, [self.config.sample.prompt]))
        return "\n\n".join([self.config.sample.prompt, *answers])

    def attended(self, params: Params) -> None:
        """None: no attention maps are drawn."""

    def problem(self, text: str) -> str:
        """Why a text cannot be answered, or ""."""
        try:
            self._prompt(text)
        except UserError as error:
            return str(error)
        return ""

    def row(self, text: str, continuation: str) -> Row:
        """The messages of a text and an answer with its end; the first tokens of those that are too long are
        dropped."""
        answer: Message = {"role": "assistant", "content": continuation}
        tokens, learned = self.data.chat.encode([*self._messages(text), answer], last_only=True)
        start, most = int(learned.argmax()), self.longest
        if len(tokens) - start > most:
            raise UserError(
                f"an answer of {len(tokens) - start} tokens; the model reads {most} (model.max_length)"
            )
        unread = max(0, len(tokens) - 1 - most)
        return Row(tokens[unread:].tolist(), start - unread, unread=unread)

    def data_lines(self) -> list[str]:
        """The number of records, and the share of padding."""
        rows: Any = self.train_data().rows  # type: ignore[attr-defined]
        line = f"{rows.records:,} training records in {len(rows):,} rows, {rows.padding:.1%} of them padding"
        own, examples = len({*rows.sequences.records.tolist()}), len(rows.sequences) // rows.per_record
        rewritten = (
            f"the template rewrites earlier messages: {own:,} conversations are {examples:,} records, "
            "each answer after the messages as they are written before it"
        )
        return [line, rewritten] if examples > own else [line]

    def example_flags(self) -> list[str]:
        """The first question of the validation split."""
        source = self.data.source("validation")
        for index in range(len(source)):
            with contextlib.suppress(UserError):  # a conversation that starts with its only answer
                return [f"--prompt={source.opening(index)[-1]['content']}"]
        return []

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The loss of answers has no baseline."""
        return []

    def _messages(self, text: str) -> list[Message]:
        messages = conversation(text)
        if messages[-1]["role"] == "assistant":
            raise UserError("the conversation ends with an answer; end it with a message of the user")
        return messages

    def _prompt(self, text: str) -> list[int]:
        return self.data.chat.prompt(self._messages(text))

    def _prompts(self, texts: Iterable[str], first: int = 0) -> Iterator[list[int]]:
        """The tokens of each conversation and of the beginning of an answer."""
        c = self.config
        for number, text in enumerate(texts, first + 1):
            try:
                tokens = self._prompt(text)
            except UserError as error:
                raise UserError(f"--prompt or --input: text {number}: {error}") from None
            length = len(tokens) + c.sample.max_new_tokens - 1
            if length > min(c.model.max_length, c.data.sequence_length):
                self._note_length(number, len(tokens), length)
            yield tokens

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end an answer, and the further ones of `sample.end_tokens`."""
        return (*self.data.chat.ends, *super().ends[1:])
