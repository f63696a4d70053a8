"""A folder as transformers writes it: config.json, tensors and tokenizer, checked before they are read."""

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config import from_values, to_values
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError, brief, suggest
from transformer.interop import FAMILIES
from transformer.interop.family import Family, given, whole
from transformer.interop.json_files import read_object
from transformer.interop.rules import Place, compare, places
from transformer.interop.tensors import Tensor, open_tensors
from transformer.interop.vocabulary import DECODER_START, read_tokenizer

CONFIG, PIXELS = "config.json", "preprocessor_config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE = "single_label_classification"

IDS = ("bos_token_id", "eos_token_id", "pad_token_id", DECODER_START)
"""Keys of special tokens in config.json and generation_config.json."""

DRAWING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""Keys of generation_config.json and of ours that say how tokens are drawn -> the defaults of
transformers."""

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
    "forced_bos_token_id": None,
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


class HubFolder:
    """A model of a known family in a local folder.

    Raises:
      UserError: there is no such folder, or its config.json is of no known family.
    """

    def __init__(self, path: str | Path) -> None:
        """Reads config.json alone."""
        self.path = Path(path).expanduser()
        if not self.path.is_dir():
            raise UserError(f"{self.path}: there is no such folder; models are read from local folders alone")
        if not (self.path / CONFIG).is_file():
            raise UserError(f"{self.path}: there is no {CONFIG}")
        self.config = read_object(self.path / CONFIG)
        kind = self.config.get("model_type")
        if not isinstance(kind, str) or kind not in FAMILIES:
            # Another architecture is no misspelt name: nothing is suggested.
            known = ", ".join(FAMILIES)
            raise UserError(f"{self.path / CONFIG}: model_type: {str(kind)[:80]!r}; expected one of {known}")
        self.family = self._family(FAMILIES[kind])

    def _family(self, heads: tuple[Family, ...]) -> Family:
        """The family of the class in "architectures", without it the first."""
        classes = self.config.get("architectures")
        name = classes[0] if isinstance(classes, list) and classes else heads[0].architecture
        for family in heads:
            if family.architecture == name:
                return family
        known = ", ".join(repr(family.architecture) for family in heads)
        raise UserError(f"{self.path / CONFIG}: architectures: {str(name)[:80]!r}; expected one of {known}")

    def values(self, config_class: Any) -> dict[str, Any]:
        """Our config groups `model`, which is checked against its class, and `data`."""
        pixels = self.path / PIXELS
        try:
            model = self.family.model(self.config)
            data = self.family.data(self.config)
            model = to_values(from_values(config_class, model, "model"))
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from None
        if self.family.pixels:
            try:
                model |= self.family.pixels(read_object(pixels) if pixels.is_file() else {})
            except UserError as error:
                raise UserError(f"{pixels}: {error}") from None
        return {"model": model, "data": data}

    @property
    def labels(self) -> list[str] | None:
        """The labels of its classes in order; None if it has none. Without id2label they are, as in
        transformers, LABEL_0, LABEL_1, ..., `num_labels` of them, or two.

        Raises:
          UserError: id2label does not number them; or the model is no classifier into one of several classes.
        """
        if not self.family.labelled:
            return None
        problem = given(self.config, "problem_type", SINGLE)
        if problem != SINGLE:
            raise UserError(f"{self.path / CONFIG}: problem_type: {problem!r}; only {SINGLE!r} is known here")
        try:
            count = whole(self.config, "num_labels", 2, most=10**6)
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from None
        numbered = given(self.config, "id2label", {str(i): f"LABEL_{i}" for i in range(count)})
        found = [numbered.get(str(i)) for i in range(len(numbered))] if isinstance(numbered, dict) else []
        names = [name for name in found if isinstance(name, str)]
        if not names or len({*names}) < len(found):
            raise UserError(f"{self.path / CONFIG}: id2label: expected different names of classes 0, 1, ...")
        if len(names) == 1:
            raise UserError(f"{self.path / CONFIG}: id2label: one class, which stands for regression there")
        return names

    @functools.cached_property
    def generation(self) -> dict[str, Any]:
        """The values that say how texts are generated: those of generation_config.json, in older folders of
        config.json."""
        path = self.path / GENERATION_CONFIG
        return self.config | (read_object(path) if path.is_file() else {})

    def search(self, longest: int) -> dict[str, Any]:
        """The keys of our group `generate` for an encoder-decoder that writes at most `longest` tokens:
        beam search as `generation` says, by default greedy."""
        said = self.generation
        found = {"beam_size": said.get("num_beams") or 1, "length_offset": 0.0}
        alpha, most, whole = (said.get(key) for key in ("length_penalty", "max_new_tokens", "max_length"))
        if not most and type(whole) is int:
            most = whole - 1  # it counts the start token
        found["max_new_tokens"] = min(most, longest) if type(most) is int and most > 0 else min(longest, 128)
        never = (ids[0] for ids in self._banned if len(ids) == 1)
        found["suppress"] = self._names([*_list(said.get("suppress_tokens")), *never])
        return found | {"length_penalty": 1.0 if alpha is None else alpha}

    @property
    def sampling(self) -> dict[str, Any]:
        """The keys of our group `sample` for a language model: the further tokens that end a text, and if
        `generation` says that tokens are drawn, how, with the defaults of transformers."""
        said = self.generation
        found: dict[str, Any] = {"end_tokens": ends} if (ends := self.end_tokens) else {}
        if said.get("do_sample"):
            found |= {key: given(said, key, default) for key, default in DRAWING.items()}
        return found

    @property
    def unfollowed(self) -> list[str]:
        """The values of `generation` that are not followed here, and change what is written."""
        paired = self.family.paired
        more = [ids for ids in self._banned if len(ids) > 1 or not paired]
        said = self.generation | {"bad_words_ids": more}
        off = UNFOLLOWED | ({"do_sample": False} if paired else {"suppress_tokens": None, "num_beams": 1})
        found = ((key, said.get(key)) for key in off)
        return [f"{key}={brief(repr(each), 60)}" for key, each in found if each not in (None, [], off[key])]

    @property
    def end_tokens(self) -> list[str]:
        """The names of further tokens that end a text, besides the tokenizer's, as `generation` lists
        them."""
        found = self.generation.get("eos_token_id")
        return [
            name for name in self._names(_list(found)) if name != self.tokenizer.name(self.tokenizer.eos_id)
        ]

    @property
    def _banned(self) -> list[list[int]]:
        """The sequences of tokens that are never written."""
        return [ids for ids in map(_list, _list(self.generation.get("bad_words_ids"))) if ids]

    def _names(self, ids: Sequence[Any]) -> list[str]:
        size, name = self.tokenizer.vocab_size, self.tokenizer.targets.name
        found = [name(i) for i in ids if type(i) is int and 0 <= i < size]
        return [*dict.fromkeys(filter(None, found))]

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, with the special tokens that tokenizer_config.json or config.json names."""
        return read_tokenizer(self.path, self.config)

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by their full names."""
        found = open_tensors(self.path)
        return {self._full(name, found): tensor for name, tensor in found.items()}

    def _renamed(self, name: str) -> str:
        for old, new in self.family.renamed:
            name = re.sub(old, new, name)
        return name

    def _full(self, name: str, names: Mapping[str, Any]) -> str:
        """The name with the family's prefix, which models without an output lack."""
        prefix = self.family.prefix
        bare = prefix and not any(each.startswith(prefix) for each in names)
        return self._renamed(prefix + name if bare and not re.match("lm_head|cls", name) else name)

    def places(self, model: Any, shapes: Mapping[str, tuple[int, ...]], vocab_size: int) -> dict[str, Place]:
        """Where each tensor belongs in parameters of these shapes, path -> shape.

        Raises:
          UserError: a tensor is missing, unknown or of another shape; or it should be a copy of another one,
            or what is computed here, and is not, so that transformers computes with other values.
        """
        found, copies = places(self.family.rules(model), shapes, vocab_size), self.family.copies(model)
        computed = self.family.computed(model)
        ignored = [*self.family.ignored(model), *map(re.escape, [*copies, *computed])]
        compare(self.tensors, found, ignored, self.path)
        names = {path: name for name, place in found.items() for path in place.paths}
        for copy, path in copies.items():
            name = names[path]
            if copy in self.tensors and not self.tensors[copy].equals(self.tensors[name]):
                raise UserError(f"{self.path}: {copy} differs from {name}; such models have one of both")
        for name in computed.keys() & self.tensors.keys():
            stored, here = self.tensors[name].open(), computed[name](self.tensors[name].shape)
            # Up to the rounding of values of at most 1 to bfloat16.
            if stored.shape != here.shape or not np.allclose(np.asarray(stored, float), here, atol=4e-3):
                raise UserError(f"{self.path}: {name} has other values than are computed for it here")
        return found


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def family_for(config: Any, name: str = "") -> tuple[Family, dict[str, Any]]:
    """The family `name`, or the first one, that can express the model of a run, and its config.json.

    Raises:
      UserError: there is none; the message names the keys that are in the way of the family with the fewest.
    """
    if name and name not in FAMILIES:
        raise UserError(f"--family: {name!r}; {suggest(name, FAMILIES)}")
    known: Iterable[Family] = FAMILIES[name] if name else itertools.chain(*FAMILIES.values())
    refused: list[tuple[str, str]] = []
    for family in known:
        if config.experiment not in (family.experiment, *family.also):
            continue
        try:
            return family, family.config(config.model) | family.write_data(config.data)
        except UserError as error:
            refused.append((family.model_type, str(error)))
    why = f"it is a run of {config.experiment}"
    if refused:
        closest, why = min(refused, key=lambda each: each[1].count("; "))
        names = dict.fromkeys(each for each, _ in refused)
        why = f"of {', '.join(names)} the closest is {closest}: {why}" if len(names) > 1 else why
    which = f"{name} cannot" if name else "no family can"
    raise UserError(f"--family: {which} express this model: {why}")


def generation_of(config: Any, tokenizer: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The generation_config.json of a run with the config.json `values`: its ids, and how texts are written,
    by `sample` or `generate`; {} if it writes none. The limit of a translation is told, which is 20 tokens
    otherwise; of length penalties those of transformers alone, with `length_offset` 0."""
    searches = hasattr(config, "generate")
    if not searches and not hasattr(config, "sample"):
        return {}
    c = config.generate if searches else config.sample
    found: dict[str, Any] = {key: values[key] for key in IDS if key in values}
    found["do_sample"] = c.temperature > 0
    if c.temperature:
        found |= {key: getattr(c, key) for key in DRAWING}
    if searches:
        # Pipelines have a max_new_tokens of their own, which comes before a model's. This counts the start.
        whole = {"max_length": c.max_new_tokens + 1}
        found |= whole if DECODER_START in values else {"max_new_tokens": c.max_new_tokens}
        if c.suppress:
            banned = [[tokenizer.targets.find(name)] for name in c.suppress]
            found |= {"bad_words_ids": banned, "renormalize_logits": True}
        if not c.temperature and c.beam_size > 1:
            found |= {"num_beams": c.beam_size, "early_stopping": "never"}
            found |= {} if c.length_offset else {"length_penalty": c.length_penalty}
    return found


def numbered(labels: Sequence[str]) -> dict[str, Any]:
    """The names of classes in a config.json."""
    names = {"id2label": {str(i): name for i, name in enumerate(labels)}}
    return names | {"label2id": {name: i for i, name in enumerate(labels)}}
