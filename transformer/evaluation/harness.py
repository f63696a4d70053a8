"""A language model behind the interface of lm-evaluation-harness (`pip install lm_eval`), for its tasks."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from transformer.data.chat.chat_template import ChatTemplate, Message
from transformer.data.chat.chat_tokens import ChatTokens
from transformer.decoding.completion import ContextWindow, TextGenerator
from transformer.decoding.sampling import FILTERS
from transformer.errors import UserError
from transformer.evaluation.scoring import Row, score_rows
from transformer.evaluation.shared_prefix import score_continuations
from transformer.training.experiment import Params

IDLE = {"num_beams": 1, "repetition_penalty": 1.0}
"""Further options of tasks -> their values without effect."""


class HarnessModel(TemplateLM):
    """A run of language modelling as a model of lm-evaluation-harness (Gao et al. 2021).

    Every text follows the start token with which documents are trained, unless `start` is false: then it is
    read as its backend `hf` reads it with `add_bos_token=False`. Of a text that is too long the last tokens
    are read that leave room for what follows. Rows are batched by length (see
    `transformer.evaluation.scoring.scores`), and a context is read once for all its continuations (see
    `transformer.evaluation.shared_prefix`).

    Raises:
      UserError: the experiment is not a language model; or (when asked) a continuation is longer than its
        context.
    """

    def __init__(self, experiment: Any, params: Params, *, start: bool = True) -> None:
        super().__init__()
        if not experiment.is_language_model:
            raise UserError(f"{experiment.config.experiment} is not a language model; expected one")
        self._experiment, self._params, self._start = experiment, params, start
        self._tokenizer = experiment.data.tokenizer
        self._chat: ChatTokens | None = None

    @property
    def eot_token_id(self) -> int:
        """The id of the end token."""
        return self._tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The id of the token before a text without context."""
        return self._tokenizer.bos_id

    @property
    def tokenizer_name(self) -> str:
        """A name for caches of requests: the identity of the tokenizer."""
        return self._tokenizer.identity

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template of conversations, if they are asked for."""
        return self._tokenizer.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The text of messages up to the beginning of an answer, or up to the text of the last one, which is
        to be continued. From then on the names of special tokens in texts are these tokens, and the start
        token is the template's.

        Raises:
          UserError: the tokenizer has no template, or it refuses the messages.
        """
        if not self._tokenizer.chat_template:
            raise UserError("apply_chat_template: the tokenizer has no chat template")
        self._chat = self._chat or ChatTokens(self._tokenizer, ChatTemplate.of(self._tokenizer))
        render = self._chat.template.render
        if add_generation_prompt:
            return render(chat_history, True)
        *before, last = chat_history
        return render(before, True) + last["content"]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The ids of a text, after the start token unless `add_special_tokens` is false."""
        if self._chat:
            return self._chat.read(string)
        ids = self._tokenizer.encode(string)
        return [self._tokenizer.bos_id, *ids] if self._start and add_special_tokens is not False else ids

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts: each token is predicted once, in windows of the longest context."""
        windows: list[Row] = []
        counts = []
        for (text,) in (request.args for request in requests):
            parts = get_rolling_token_windows(
                token_list=self._tokenizer.encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._experiment.longest,
                context_len=1,
            )
            rows = [self._row(*make_disjoint_window(part)) for part in parts]
            windows += rows
            counts.append(len(rows))
        likelihoods = (score.log_likelihood for score in score_rows(self._experiment, self._params, windows))
        return [sum(next(likelihoods) for _ in range(count)) for count in counts]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The completion of each text, up to the first of its stop strings."""
        completions: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        for options, numbers in groups.items():
            prompts = {i: self.tok_encode(requests[i].args[0]) or [self.prefix_token_id] for i in numbers}
            order = sorted(numbers, key=lambda i: len(prompts[i]))
            texts = self._complete([prompts[i] for i in order], json.loads(options))
            completions.update(zip(order, texts, strict=True))
        return [completions[i] for i in range(len(requests))]

    def _complete(self, prompts: Iterable[list[int]], options: dict[str, Any]) -> list[str]:
        settings: dict[str, Any] = {**normalize_gen_kwargs(options)}
        sampled, temperature = settings.pop("do_sample"), float(settings.pop("temperature", 0.0))
        limit, until = settings.pop("max_gen_toks"), settings.pop("until")
        filters = {name: type(off)(settings.pop(name, off)) for name, (_, off) in FILTERS.items()}
        if unread := [f"{name}={value!r}" for name, value in settings.items() if value != IDLE.get(name)]:
            read = ", ".join(["until", "max_gen_toks", "do_sample", "temperature", *filters])
            raise UserError(f"generation_kwargs: {', '.join(unread)} cannot be followed; read are {read}")
        config = dataclasses.replace(
            self._experiment.config.sample,
            temperature=(temperature or 1.0) if sampled else 0.0,
            max_new_tokens=limit,
            stop=tuple(until),
            num_samples=1,
            **filters,
        )
        longest, ends = self._experiment.longest, self._experiment.ends
        window = ContextWindow(self.eot_token_id, longest, rolling=True, further=ends)
        most = max(0, longest - limit)  # 0: the new tokens do not all fit, and the window rolls
        prompts = (prompt[-most:] for prompt in prompts)
        stepper = self._experiment.stepper(self._params)
        generator = TextGenerator(stepper, self._tokenizer, config, window, continues=True)
        return [text for (text,) in generator.generate(prompts, jax.random.key(0))]

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        rows = [self._row(context, continuation) for _, context, continuation in requests]
        scores = score_continuations(self._experiment, self._params, rows)
        return [(score.log_likelihood, score.greedy) for score in scores]

    def _row(self, context: Sequence[int], continuation: Sequence[int]) -> Row:
        """Both, without the first tokens that do not fit; the last token is not read."""
        if (count := len(continuation)) > self._experiment.longest:
            most = self._experiment.longest
            raise UserError(f"a continuation of {count} tokens; the model reads {most} (model.max_length)")
        tokens = [*(context or [self.prefix_token_id]), *continuation][-(self._experiment.longest + 1) :]
        return Row(tokens, max(1, len(tokens) - count))
