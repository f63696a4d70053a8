"""generation_config.json: the settings of generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import brief
from transformer.interop.family import value_or
from transformer.interop.json_files import as_list
from transformer.interop.vocabulary import DECODER_START

IDS = ("bos_token_id", "eos_token_id", "pad_token_id", DECODER_START)
"""Keys of special tokens in config.json and generation_config.json."""

DRAWING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""Keys of generation_config.json and of ours that say how tokens are drawn -> the defaults of
transformers."""

FIRST = "forced_bos_token_id"
"""The key of the token with which each text of an encoder-decoder begins, after the start token."""

UNFOLLOWED = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "stop_strings": None,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""Keys of generation_config.json that change what is written and have no counterpart here -> their values
without effect."""


@dataclass(frozen=True)
class Generation:
    """The settings in a folder for writing texts; a `paired` model is an encoder-decoder."""

    values: Mapping[str, Any]
    tokenizer: Tokenizer
    paired: bool

    def search(self, longest: int) -> dict[str, Any]:
        """The keys of our group `generate` for an encoder-decoder that writes at most `longest` tokens:
        beam search as its values say, by default greedy."""
        values = self.values
        search = {"beam_size": values.get("num_beams") or 1, "length_offset": 0.0}
        alpha, most, whole = (values.get(key) for key in ("length_penalty", "max_new_tokens", "max_length"))
        if not most and type(whole) is int:
            most = whole - 1  # it counts the start token
        search["max_new_tokens"] = min(most, longest) if type(most) is int and most > 0 else min(longest, 128)
        never = (ids[0] for ids in self._banned if len(ids) == 1)
        search["suppress"] = self._names([*as_list(values.get("suppress_tokens")), *never])
        first = self._names(as_list(values.get(FIRST)))
        search |= {"first": first[0]} if first else {}
        return search | {"length_penalty": 1.0 if alpha is None else alpha}

    @property
    def sampling(self) -> dict[str, Any]:
        """The keys of our group `sample` for a language model: the further tokens that end a text, and if
        tokens are drawn, how, with the defaults of transformers."""
        values = self.values
        sampling: dict[str, Any] = {"end_tokens": ends} if (ends := self.end_tokens) else {}
        if values.get("do_sample"):
            sampling |= {key: value_or(values, key, default) for key, default in DRAWING.items()}
        return sampling

    @property
    def unfollowed(self) -> list[str]:
        """The values that are not followed here, and change what is written."""
        more = [ids for ids in self._banned if len(ids) > 1 or not self.paired]
        values = {**self.values, "bad_words_ids": more}
        defaults = (
            {"do_sample": False} if self.paired else {"suppress_tokens": None, "num_beams": 1, FIRST: None}
        )
        off = UNFOLLOWED | defaults
        settings = ((key, values.get(key)) for key in off)
        return [
            f"{key}={brief(repr(value), 60)}" for key, value in settings if value not in (None, [], off[key])
        ]

    @property
    def end_tokens(self) -> list[str]:
        """The names of further tokens that end a text, besides the tokenizer's."""
        first = self.tokenizer.name(self.tokenizer.eos_id)
        return [name for name in self._names(as_list(self.values.get("eos_token_id"))) if name != first]

    @property
    def _banned(self) -> list[list[int]]:
        """The sequences of tokens that are never written."""
        return [ids for ids in map(as_list, as_list(self.values.get("bad_words_ids"))) if ids]

    def _names(self, ids: Sequence[Any]) -> list[str]:
        size, name = self.tokenizer.vocab_size, self.tokenizer.targets.name
        names = [name(i) for i in ids if type(i) is int and 0 <= i < size]
        return [*dict.fromkeys(filter(None, names))]


def generation_of(config: Any, tokenizer: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The generation_config.json of a run with the config.json `values`: its ids, and how texts are written,
    by `sample` or `generate`; {} if it writes none. The limit of a translation is told, which is 20 tokens
    otherwise; of length penalties those of transformers alone, with `length_offset` 0."""
    searches = "generate" in vars(config)
    if not searches and "sample" not in vars(config):
        return {}
    c = config.generate if searches else config.sample
    settings: dict[str, Any] = {key: values[key] for key in IDS if key in values}
    settings["do_sample"] = c.temperature > 0
    if c.temperature:
        settings |= {key: getattr(c, key) for key in DRAWING}
    if searches:
        # Pipelines have a max_new_tokens of their own, which comes before a model's. This counts the start.
        whole = {"max_length": c.max_new_tokens + 1}
        settings |= whole if DECODER_START in values else {"max_new_tokens": c.max_new_tokens}
        settings |= {FIRST: tokenizer.targets.find(c.first)} if c.first else {}
        if c.suppress:
            banned = [[tokenizer.targets.find(name)] for name in c.suppress]
            settings |= {"bad_words_ids": banned, "renormalize_logits": True}
        if not c.temperature and c.beam_size > 1:
            settings |= {"num_beams": c.beam_size, "early_stopping": "never"}
            settings |= {} if c.length_offset else {"length_penalty": c.length_penalty}
    return settings
