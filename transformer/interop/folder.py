"""A folder as transformers writes it: config.json, tensors and tokenizer, checked before they are read."""

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer.config import from_values
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError, suggest
from transformer.interop import FAMILIES
from transformer.interop.family import Family
from transformer.interop.json_files import read_object
from transformer.interop.rules import Place, compare, places
from transformer.interop.tensors import Tensor, open_tensors
from transformer.interop.vocabulary import read_tokenizer

CONFIG = "config.json"


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
            raise UserError(
                f"{self.path / CONFIG}: model_type: {str(kind)[:80]!r}; {suggest(kind, FAMILIES)}"
            )
        self.family: Family = FAMILIES[kind]

    def model(self, config_class: Any) -> Any:
        """Our config of the model, of this class."""
        try:
            return from_values(config_class, self.family.model(self.config), "model")
        except UserError as error:
            raise UserError(f"{self.path / CONFIG}: {error}") from None

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, with the special tokens that tokenizer_config.json or config.json names."""
        return read_tokenizer(self.path, self.config)

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by their full names."""
        found = open_tensors(self.path)
        return {self._full(name, found): tensor for name, tensor in found.items()}

    def _full(self, name: str, names: Mapping[str, Any]) -> str:
        """The name with the family's prefix, which models without an output lack."""
        prefix = self.family.prefix
        bare = prefix and not any(each.startswith(prefix) for each in names)
        return prefix + name if bare and not re.match("lm_head|cls", name) else name

    def places(self, model: Any, shapes: Mapping[str, tuple[int, ...]], vocab_size: int) -> dict[str, Place]:
        """Where each tensor belongs in parameters of these shapes, path -> shape.

        Raises:
          UserError: a tensor is missing, unknown or of another shape.
        """
        found = places(self.family.rules(model), shapes, vocab_size)
        compare(self.tensors, found, self.family.ignored(model), self.path)
        return found


def family_for(model: Any, experiment: str, name: str = "") -> tuple[Family, dict[str, Any]]:
    """The family `name`, or the first one, that can express our `model`, and its config.json.

    Raises:
      UserError: there is none; the message names the key that is in the way.
    """
    if name and name not in FAMILIES:
        raise UserError(f"--family: {name!r}; {suggest(name, FAMILIES)}")
    known: Iterable[Family] = [FAMILIES[name]] if name else FAMILIES.values()
    refused = [f"it is a run of {experiment}"]
    for family in known:
        if family.experiment != experiment:
            continue
        try:
            return family, family.config(model)
        except UserError as error:
            refused.append(str(error))
    raise UserError(f"--family: no family can express this model: {'; '.join(refused[1:] or refused)}")
