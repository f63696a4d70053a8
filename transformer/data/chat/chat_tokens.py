"""Conversations as tokens, with the answers marked."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from transformer.data.cache.disk_cache import digest
from transformer.data.chat.chat_template import ChatTemplate, Message, RewrittenError
from transformer.data.chat.message_fields import CALLS, joined_system, texts_in
from transformer.data.tokenization.tokenizers import Tokenizer, whole
from transformer.errors import UserError


class ChatTokens:
    """Conversations as tokens, by a template and a tokenizer whose special tokens the template may use.

    With `joins_system` a first message of the system is the beginning of the user's, for templates that
    refuse it, such as Gemma's.

    Raises:
      UserError: the template ends answers with no special token, so that their end cannot be recognised.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, joins_system: bool = False) -> None:
        self._joins_system = joins_system
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
        names = {role: tokenizer.name(i) for role, i in ids.items()}
        if tokenizer.special and "bos_token" not in tokenizer.special:
            names["bos_token"] = ""  # as in transformers, where what is not named is empty in a template
        self.template = dataclasses.replace(template, tokens=names)
        parts = [self.template.source, self.template.tokens, *(["joins system"] if joins_system else [])]
        self.identity = digest("chat", tokenizer.identity, *parts)
        self._backend = whole(tokenizers.Tokenizer.from_str(tokenizer.content), "the tokenizer")
        self._backend.encode_special_tokens = False
        added = self._backend.get_added_tokens_decoder()
        self._special = {i: token.content for i, token in added.items() if token.special}
        # A template may also start an answer with special tokens.
        ends = self._special_after("answer", {"content": "answer"})
        if not ends:
            raise UserError("the template ends answers with no special token of the tokenizer")
        self.end_id: int = ends[0]
        call = {"type": "function", "function": {"name": "answer", "arguments": {}}}
        calls: list[int] = []
        with contextlib.suppress(UserError):  # a template that has no calls
            calls = self._special_after("answer", {"content": "", CALLS: [call]})
        self.ends: tuple[int, ...] = (*dict.fromkeys([self.end_id, *calls[-1:]]),)
        """The tokens that end an answer: `end_id`, and that after calls of tools, which some templates end
        otherwise."""

    def _special_after(self, text: str, fields: Mapping[str, Any]) -> list[int]:
        """The special tokens that the template writes after a text in an answer with these fields."""
        talk = [{"role": "user", "content": "question"}, {"role": "assistant", **fields}]
        piece, _ = self.template.pieces(talk)[-1]
        return [i for i in self.read(piece.rpartition(text)[2]) if i in self._special]

    def encode(self, messages: Sequence[Message], last_only: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The tokens (m,) up to the end of the last answer to learn, and whether each is one of such an
        answer or its end; with `last_only` of the last one.

        Raises:
          UserError: a message has the text of a special token, there is nothing to learn, or the template
            refuses the messages or leaves out some of what they say.
        """
        return self._encode(self._checked(messages), last_only)

    def _encode(self, messages: Sequence[Message], last_only: bool) -> tuple[np.ndarray, np.ndarray]:
        ids: list[int] = []
        marks: list[bool] = []
        for new, is_answer in self._pieces(messages, last_only=last_only):
            stop = len(new) - new[::-1].index(self.end_id) if is_answer and self.end_id in new else len(new)
            ids += new
            marks += [is_answer and i < stop for i in range(len(new))]
        if not any(marks):
            raise UserError("no answer to learn: expected a message of the assistant, without weight 0")
        last = len(marks) - marks[::-1].index(True)
        marks_m = np.array(marks[:last])
        if last_only:
            marks_m[: np.flatnonzero(~marks_m)[-1]] = False
        return np.array(ids[:last], np.int64), marks_m

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of messages and of the beginning of an answer to them. Raises as `encode`."""
        messages = self._checked(messages)
        return [i for new, _ in self._pieces(messages, answering=True) for i in new]

    def examples(
        self, messages: Sequence[Message], last_only: bool = False
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The conversation as `encode` has it; where the template writes earlier messages otherwise when
        others follow, once for each answer to learn, after the messages before it as they are written then.
        Raises as `encode`."""
        messages = self._checked(messages)
        try:
            if not last_only:
                list(self.template.pieces(messages))
        except RewrittenError:
            learned = [i for i, m in enumerate(messages) if m["role"] == "assistant" and m.get("weight") != 0]
            yield from (self._encode(messages[: i + 1], last_only=True) for i in learned)
        else:
            yield self._encode(messages, last_only)

    def _pieces(
        self, messages: Sequence[Message], answering: bool = False, last_only: bool = False
    ) -> Iterator[tuple[list[int], bool]]:
        """The tokens that each piece of the template adds to the one before it, or of a piece alone where a
        token would span both: so a prompt has the tokens that training has before its answer.

        SentencePiece starts a text with a space, but not what continues one.
        """
        before = ""
        for text, is_answer in self._texts(messages, answering, last_only):
            head, joined = self.read(before), self.read(before + text)
            yield joined[len(head) :] if joined[: len(head)] == head else self.read(text), is_answer
            before = text or before

    def _texts(self, messages: Sequence[Message], answering: bool, last_only: bool) -> list[tuple[str, bool]]:
        try:
            return self.template.pieces(messages, answering)
        except RewrittenError:
            if not (answering or last_only):
                raise
            return self.template.pieces(messages, answering, last=True)

    def _checked(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as the template gets them."""
        messages = joined_system(messages) if self._joins_system else messages
        for number, message in enumerate(messages, 1):
            texts = [*texts_in(message)]
            for name in self._special.values():
                if any(name in text for text in texts):
                    raise UserError(
                        f"message {number} has {name!r}, which is a special token: write it otherwise"
                    )
        self.template.check_written(messages)
        if messages[0]["role"] == "system":
            self._check_system(messages)
        return messages

    def _check_system(self, messages: Sequence[Message]) -> None:
        """Raises `UserError` with a remedy if the template refuses only the system's message."""
        try:
            self.template.render(messages)
        except UserError as error:
            with contextlib.suppress(UserError):
                self.template.render(joined_system(messages))
                remedy = "data.system_role=user puts the system's message before that of the user"
                error = UserError(f"{error}; {remedy}")
            raise error from None

    def read(self, text: str) -> list[int]:
        """The tokens of a text in which names of special tokens are these."""
        return self._backend.encode(text, add_special_tokens=False).ids
