"""Models of Hugging Face transformers as runs: "hf:FOLDER" in `initialize_from`, --mode=import."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from flax import linen as nn
from flax import traverse_util

from experiments import find_experiment
from transformer.config import from_values
from transformer.interop.hub_folder import HubFolder
from transformer.interop.sentence_modules import read_modules
from transformer.interop.tensor_rules import Place
from transformer.interop.transfer import load
from transformer.run_folder import HUB
from transformer.training.checkpoints.checkpoint import arrays

LONGEST_ROWS = 2048
"""Tokens of a row in evaluations of an imported model, or as many as it reads."""


class Hub:
    """A folder of transformers as the run that it becomes, and as an `Origin` of parameters. With `alone` a
    model without a head is the run that embeds texts, as sentence-transformers does, or images.

    Raises:
      UserError: see `HubFolder` and its methods; with the name of the file.
    """

    def __init__(
        self, path: str, ignore: Sequence[str] = (), tokenizer: Path | None = None, alone: bool = False
    ) -> None:
        """Reads config.json, without the keys `ignore`, and the tokenizer, which may be in another folder;
        `values` is the run's config."""
        self.folder = HubFolder(path, ignore, tokenizer)
        family = self.folder.family
        self._alone = alone and bool(family.heads)
        self._name = family.alone if self._alone else family.experiment
        self._kind = find_experiment(self._name)
        self._of = {name: field.type for name, field in self._kind.Config.__dataclass_fields__.items()}
        self.labels: Sequence[str] | None = [] if family.labelled and self._alone else self.folder.labels
        self.stored: dict[str, Any] = {} if self.labels is None else {"labels": self.labels}
        if "tokenizer" in self._of["data"].__dataclass_fields__:
            self.stored["tokenizer"] = self.folder.tokenizer
        self.values = self._values()
        self.model = from_values(self._of["model"], self.values["model"])

    def _values(self) -> dict[str, Any]:
        """The config of a run that has trained for one step, by an optimizer that keeps nothing."""
        values = self.folder.values(self._of["model"])
        own = {
            "experiment": self._name,
            "optimizer": {"name": "sgd", "schedule": "constant", "warmup_steps": 0},
            "train": {"steps": 1},
        }
        if "tokenizer" in self.stored:
            values["data"]["tokenizer"] = str(self.folder.path / "tokenizer.json")
        longest = values["model"].get("max_length", 0)
        keys = self._of["data"].__dataclass_fields__
        values["data"] = {key: value for key, value in values["data"].items() if key in keys}
        if self._alone and "query_length" in keys:
            more, longest = read_modules(self.folder.path, longest)
            values["model"] |= more
        for key in ("sequence_length", "source_length", "target_length", "query_length", "passage_length"):
            if key in keys:
                values["data"][key] = min(longest, LONGEST_ROWS)
        if self.folder.family.paired:
            values["generate"] = self.folder.generation.search(longest)
            values["data"]["first_token"] = self.folder.first_token
        if "sample" in self._of:
            values["sample"] = self.folder.generation.sampling
        return own | values

    @property
    def writes(self) -> bool:
        """Whether the model generates text."""
        return not self.values.keys().isdisjoint(("sample", "generate"))

    @property
    def name(self) -> str:
        """See `Origin`."""
        return str(self)

    @property
    def remarks(self) -> Sequence[str]:
        """See `Origin`."""
        return self.folder.remarks

    def __str__(self) -> str:
        return f"{HUB}{self.folder.path}"

    @functools.cached_property
    def config(self) -> Any:
        """See `Origin`."""
        return from_values(self._kind.Config, self.values)

    @functools.cached_property
    def experiment(self) -> Any:
        """Its own experiment."""
        return self._kind(self.config, **self.stored)

    @functools.cached_property
    def abstract(self) -> Any:
        """The parameters of its own model, as `jax.ShapeDtypeStruct`s."""
        with nn.logical_axis_rules(()):  # of no mesh, whichever run asks
            return nn.meta.unbox(jax.eval_shape(self.experiment.init, jax.random.key(0)))

    @functools.cached_property
    def places(self) -> dict[str, Place]:
        """Where each of its tensors belongs."""
        shapes = {
            path: leaf.shape for path, leaf in traverse_util.flatten_dict(self.abstract, sep="/").items()
        }
        return self.folder.places(self.model, shapes, self.model.vocab_size)

    def shapes(self) -> dict[str, tuple]:
        """See `Origin`."""
        paths = {path for place in self.places.values() for path in place.paths}
        return {path: shape for path, shape in arrays(self.abstract).items() if path in paths}

    def read(self, abstract: Any) -> Any:
        """See `Origin`."""
        return load(self.places, self.folder.tensors, abstract)
