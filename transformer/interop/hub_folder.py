"""A folder as transformers writes it: config.json, tensors and tokenizer, checked before they are read."""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config import from_values, to_values
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError, brief, suggest
from transformer.interop import FAMILIES
from transformer.interop.family import Family, shown_key, value_or, whole_number
from transformer.interop.folders.other_folders import explanation
from transformer.interop.folders.text_part import text_config, text_tensors
from transformer.interop.generation_config import Generation
from transformer.interop.json_files import as_list, read_object
from transformer.interop.sentence_modules import MODULES
from transformer.interop.tensor_rules import Place, Rule, compare, places
from transformer.interop.tensors import Tensor, open_tensors
from transformer.interop.vocabulary import read_tokenizer
from transformer.interop.wordpiece import added_around

CONFIG, PIXELS = "config.json", "preprocessor_config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE = "single_label_classification"


class HubFolder:
    """A model of a known family in a local folder, without the keys `ignore` of its config.json.

    Raises:
      UserError: there is no such folder, or its config.json is of no known family; or a key of `ignore` is
        not in it, or known to the family.
    """

    def __init__(self, path: str | Path, ignore: Sequence[str] = (), tokenizer: Path | None = None) -> None:
        """Reads config.json alone; the tokenizer may be in another folder."""
        self.path = Path(path).expanduser()
        self._tokenizer_path = tokenizer or self.path
        if not self.path.is_dir():
            raise UserError(f"{self.path}: there is no such folder; models are read from local folders alone")
        if not (self.path / CONFIG).is_file():
            raise UserError(f"{self.path}: there is no {CONFIG}{explanation(self.path)}")
        self.config = read_object(self.path / CONFIG)
        text = text_config(self.config, FAMILIES)
        self._whole, self.config = (self.config.get("model_type"), text) if text else (None, self.config)
        kind = self.config.get("model_type")
        if not isinstance(kind, str) or kind not in FAMILIES:
            # Another architecture is not a misspelt name: nothing is suggested.
            known = ", ".join(FAMILIES)
            raise UserError(f"{self.path / CONFIG}: model_type: {str(kind)[:80]!r}; expected one of {known}")
        self.family = self._family(FAMILIES[kind])
        for name in ignore:
            if name not in self.config:
                raise UserError(f"--ignore: {name!r}: there is no such key in {self.path / CONFIG}")
            if name in self.family.known:
                raise UserError(f"--ignore: {name!r}: {kind!r} has this key; only others can be left out")
        self.config = {name: value for name, value in self.config.items() if name not in ignore}
        self.ignored = [*ignore, *self.family.foreign(self.config)]

    @property
    def remarks(self) -> list[str]:
        """Remarks for its user: keys that are left out, and labels that are told apart by numbers."""
        names = {*self._names} if self.labels else set()
        numbers = [label for label in self.labels or () if label not in names]
        texts = f"{CONFIG}: of {self._whole!r} the text model alone, {self.family.model_type!r}, is read"
        groups = {"ignored": map(shown_key, self.ignored), "classes of one name": map(repr, numbers)}
        lines = {label: brief(", ".join(names), 1000) for label, names in groups.items()}
        remarks = [f"{CONFIG}: {label}: {names}" for label, names in lines.items() if names]
        return [texts, *remarks] if self._whole else remarks

    def _family(self, heads: tuple[Family, ...]) -> Family:
        """The family of the class in "architectures", without it the first; beside modules.json that without
        a head, as sentence-transformers reads such folders, whatever their encoder was trained with."""
        encoders = [family for family in heads if family.heads]
        if encoders and (self.path / MODULES).is_file():
            return encoders[0]
        name = next(iter(as_list(self.config.get("architectures"))), heads[0].architecture)
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
            if self.family.heads:  # of which an objective need not have the keys
                model = {
                    name: value for name, value in model.items() if name in config_class.__dataclass_fields__
                }
            model = to_values(from_values(config_class, model, "model"))
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from None
        if self.family.pixels:
            try:
                model |= self.family.pixels(read_object(pixels) if pixels.is_file() else {})
            except UserError as error:
                raise UserError(f"{pixels}: {error}") from None
        return {"model": model, "data": data}

    @functools.cached_property
    def labels(self) -> list[str] | None:
        """The labels of its classes in order, each once; None if it has none.

        Raises:
          UserError: id2label does not number them; or the model is not a classifier into classes.
        """
        if not self.family.labelled:
            return None
        problem = value_or(self.config, "problem_type", SINGLE)
        if problem != SINGLE:
            raise UserError(f"{self.path / CONFIG}: problem_type: {problem!r}; only {SINGLE!r} is known here")
        labels = distinct_labels(self._names)
        if len(labels) == 1:
            raise UserError(f"{self.path / CONFIG}: id2label: one class, which stands for regression there")
        if not labels or len({*labels}) < len(labels):
            raise UserError(f"{self.path / CONFIG}: id2label: expected different names of classes 0, 1, ...")
        return labels

    @functools.cached_property
    def _names(self) -> list[str]:
        """The names in id2label in order; [] if it does not number them. Without it they are, as in
        transformers, LABEL_0, LABEL_1, ..., `num_labels` of them, or two."""
        try:
            count = whole_number(self.config, "num_labels", 2, most=10**6)
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from None
        id2label = value_or(self.config, "id2label", {str(i): f"LABEL_{i}" for i in range(count)})
        entries = [id2label.get(str(i)) for i in range(len(id2label))] if isinstance(id2label, dict) else []
        names = [name for name in entries if isinstance(name, str)]
        return names if len(names) == len(entries) else []

    @property
    def generation_file(self) -> str:
        """The name of the file that says how texts are written: in older folders config.json."""
        return GENERATION_CONFIG if (self.path / GENERATION_CONFIG).is_file() else CONFIG

    @functools.cached_property
    def generation(self) -> Generation:
        """Its settings of generation."""
        values = self.config | read_object(self.path / self.generation_file)
        return Generation(values, self.tokenizer, self.family.paired)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, with the special tokens that tokenizer_config.json or config.json names."""
        return read_tokenizer(self._tokenizer_path, self.config)

    @property
    def first_token(self) -> str:
        """The name of the token that its tokenizer adds before a text; "" if it adds none, or several."""
        before, _ = added_around(self.tokenizer.backend)
        return self.tokenizer.name(before[0]) if len(before) == 1 else ""

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by their full names."""
        stored = open_tensors(self.path)
        stored = text_tensors(stored) if self._whole else stored
        return {self._full(name, stored): tensor for name, tensor in stored.items()}

    def _renamed(self, name: str) -> str:
        for old, new in self.family.renamed:
            name = re.sub(old, new, name)
        return name

    def _full(self, name: str, names: Mapping[str, Any]) -> str:
        """The name with the family's prefix, which models without an output lack."""
        prefix = self.family.prefix
        bare = prefix and not any(tensor.startswith(prefix) for tensor in names)
        return self._renamed(prefix + name if bare and not re.match("lm_head|cls", name) else name)

    def _of_head(self, path: str) -> bool:
        """Whether a parameter of ours belongs to a head that the model may lack."""
        return path.partition("/")[0] in self.family.heads

    def _lacks(self, rule: Rule) -> bool:
        """Whether the model lacks a part of a head."""
        return self._of_head(rule.paths[0]) and rule.theirs not in self.tensors

    def _needless(self, rule: Rule, shapes: Mapping[str, Any]) -> bool:
        """Whether a part of a head is none of the model's here."""
        return self._of_head(rule.paths[0]) and rule.paths[0] not in shapes

    def places(self, model: Any, shapes: Mapping[str, tuple[int, ...]], vocab_size: int) -> dict[str, Place]:
        """Where each tensor belongs in parameters of these shapes, path -> shape; of a head that the model
        lacks there are none.

        Raises:
          UserError: a tensor is missing, unknown or of another shape; or it should be a copy of another,
            or what is computed here, and is not, so that transformers computes with other values.
        """
        rules = [rule for rule in self.family.rules(model) if not self._lacks(rule)]
        needless = [re.escape(rule.theirs) for rule in rules if self._needless(rule, shapes)]
        rules = [rule for rule in rules if not self._needless(rule, shapes)]
        ruled = {path for rule in rules for path in rule.paths}
        shapes = {path: shape for path, shape in shapes.items() if path in ruled or not self._of_head(path)}
        by_name, copies = places(rules, shapes, vocab_size), self.family.copies(model)
        computed = self.family.computed(model)
        ignored = [*self.family.ignored(model), *needless, *map(re.escape, [*copies, *computed])]
        if self.family.heads and self.family.prefix:  # those of a head, of whichever class
            ignored.append(f"(?!{re.escape(self.family.prefix)}).*")
        compare(self.tensors, by_name, ignored, self.path)
        names = {path: name for name, place in by_name.items() for path in place.paths}
        for copy, path in copies.items():
            name = names[path]
            if copy in self.tensors and not self.tensors[copy].equals(self.tensors[name]):
                raise UserError(f"{self.path}: {copy} differs from {name}; such models have one of both")
        for name in computed.keys() & self.tensors.keys():
            stored, here = self.tensors[name].open(), computed[name](self.tensors[name].shape)
            # Up to the rounding of values of at most 1 to bfloat16.
            if stored.shape != here.shape or not np.allclose(np.asarray(stored, float), here, atol=4e-3):
                raise UserError(f"{self.path}: {name} has other values than are computed for it here")
        return by_name


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
        ours = (family.alone,) if family.heads else (family.experiment, *family.also)
        if config.experiment not in ours:
            continue
        try:
            return family, family.config(config.model) | family.write_data(config.data)
        except UserError as error:
            refused.append((family.model_type, str(error)))
    why = f"it is a run of {config.experiment}"
    if refused:
        closest, why = min(refused, key=lambda refusal: refusal[1].count("; "))
        names = dict.fromkeys(refusal for refusal, _ in refused)
        why = f"of {', '.join(names)} the closest is {closest}: {why}" if len(names) > 1 else why
    who = f"{name} cannot" if name else "no family can"
    raise UserError(f"--family: {who} express this model: {why}")


def distinct_labels(names: Sequence[str]) -> list[str]:
    """The names of classes, where several have one with the number of the class: ImageNet's two cranes are
    "crane (134)" and "crane (517)"."""
    counts = Counter(names)
    return [f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(names)]


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """The names of classes in a config.json."""
    names = {"id2label": {str(i): name for i, name in enumerate(labels)}}
    return names | {"label2id": {name: i for i, name in enumerate(labels)}}
