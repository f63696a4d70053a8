"""The folder of a run: everything that it needs to resume, evaluate and predict."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, find_experiment
from transformer.data.contents import changes
from transformer.data.storage import digest
from transformer.data.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.freeze import thaw, with_defaults
from transformer.training.checkpoint import trained_steps

FREE = (
    "train.",
    "evaluate.",
    "parallel.",
    "sample.",
    "generate.",
    "answer.",
    "data.cache_dir",
    "data.workers",
    "loss.chunk_size",
    "model.kernel",
    "model.scan_layers",
    "model.remat",
)
"""Keys, or beginnings of keys, with which a run may be resumed otherwise than it began: how long and how
often, where and in which pieces things are computed. What is computed stays the same."""

FIXED = ("train.batch_size",)
"""Keys among `FREE` that may not change after all."""

RETIRED = (("data", "evaluate_on"),)
"""Keys that folders of earlier runs may have, and that nothing reads any more."""


LOCATIONS = ("data.source", "data.validation_source")
"""Keys that say where the data are; what they are is compared by itself."""


class Workdir:
    """The paths of a run folder, and its `config.json`."""

    def __init__(self, path: str | os.PathLike):
        if re.match(r"\w[\w.+-]*://", str(path)):
            raise UserError(
                f"--workdir: {path} is on another system; expected a folder of this one, or mounted"
            )
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.labels = self.path / "labels.json"
        self.data = self.path / "data.json"
        self.lengths = self.path / "lengths.json"
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events"
        self.samples = self.path / "samples"
        self.profile = self.path / "profile"
        self.report = self.path / "report.md"
        self.evaluation = self.path / "evaluation.json"

    @property
    def lock(self) -> Path:
        """What a training holds, and no other may (see `experiments.lock`)."""
        return self.path / "lock"

    @property
    def begun(self) -> bool:
        """Whether there is something to go on with: a complete checkpoint. What else an attempt has left that
        ended before its first one is written anew."""
        return self.trained_steps() > 0

    def read_config(self) -> dict[str, Any]:
        """The values of the run's config, which are checked again when they are frozen; a key that is newer
        than the folder has its default.

        Raises:
          UserError: the folder is none of a run.
        """
        if not self.config.is_file():
            what = (
                "has no config.json: it is not the folder of a run"
                if self.path.is_dir()
                else "does not exist"
            )
            raise UserError(f"--workdir: {self.path} {what}")
        try:
            values = json.loads(self.config.read_text())
        except ValueError as error:
            raise UserError(f"{self.config}: not readable as JSON ({error})") from None
        if not isinstance(values, dict):
            raise UserError(f"{self.config}: expected the groups of a config, as JSON has them")
        for group, key in RETIRED:
            if isinstance(values.get(group), dict):
                values[group].pop(key, None)
        known = values.get("experiment") in EXPERIMENTS
        return with_defaults(find_experiment(values["experiment"]).Config, values) if known else values

    def check(self, config: Any) -> None:
        """Makes sure that the folder is new, or of a run with this config.

        Raises:
          UserError: it belongs to another run.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--workdir: {self.path} is a file")
        if self.config.exists() and not self.begun:
            return
        if not self.config.exists():
            foreign = [path for path in vars(self).values() if path != self.path and path.exists()]
            if foreign:
                raise UserError(
                    f"--workdir: {foreign[0]} is there without a config.json; choose another folder"
                )
            return
        here, there = flatten(thaw(config)), flatten(self.read_config())
        keys = [key for key in here | there if here.get(key) != there.get(key) and not _is_free(key)]
        if self.data.exists():
            keys = [key for key in keys if not _is_moved(key, here, there)]
        if keys:
            listed = ", ".join(f"{key} {_show(there, key)} (here {_show(here, key)})" for key in keys)
            raise UserError(
                f"--workdir: {self.path} belongs to another config: {listed}; choose another folder"
            )

    def read_kept(self) -> dict[str, Any]:
        """What the run learned from its data before it trained, by name: what `write` was given. Nothing,
        where it has not begun."""
        kept: dict[str, Any] = {}
        if not self.begun:
            return kept
        if self.tokenizer.exists():
            kept["tokenizer"] = Tokenizer.load(self.tokenizer)
        if self.labels.exists():
            kept["labels"] = json.loads(self.labels.read_text(encoding="utf-8"))
        return kept

    def check_data(self, data: Mapping[str, Any]) -> None:
        """Makes sure that a run that has begun goes on with the data it began with; `data` is what `describe`
        gives. A run that kept no such thing goes on with any.

        Raises:
          UserError: a file, another source or the tokenizer has changed.
        """
        if not (self.begun and self.data.exists()):
            return
        try:
            before = json.loads(self.data.read_text(encoding="utf-8"))
            found = [changes(before["sources"], data["sources"])]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{self.data}: not readable; --accept_data goes on and writes it anew") from None
        for name in ("tokenizer", "labels"):
            if before.get(name) != data.get(name):
                found.append(f"{name}.json is another one")
        if any(found):
            listed = ", ".join(filter(None, found))
            raise UserError(
                f"--workdir: {self.path} began with other data: {listed}; --accept_data goes on with these"
            )

    def read_lengths(self, steps: int) -> list[tuple[int, int]]:
        """Where `train.steps` was changed, for a run that now goes on to `steps`: (at, before), ... with the
        step up to which the run was to have `before` steps. What was changed twice between the same two steps
        of training was changed once."""
        try:
            known = json.loads(self.lengths.read_text()) if self.lengths.exists() else []
        except ValueError as error:
            raise UserError(f"{self.lengths}: not readable as JSON ({error})") from None
        trained = self.trained_steps()
        if not trained:
            return []
        before = self.read_config()["train"]["steps"]
        if known and known[-1][0] == trained:
            _, before = known.pop()
        if before != steps:
            known.append((trained, before))
        return [(at, length) for at, length in known]

    def write(self, config: Any, kept: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Keeps the whole config and what is known of the data, and the tokenizer and labels where there are
        any, unless the run has begun with them; a reader sees old ones or new ones, never parts."""
        begun = self.begun
        self.path.mkdir(parents=True, exist_ok=True)
        lengths = self.read_lengths(config.train.steps)
        if lengths or self.lengths.exists():
            _write_json(self.lengths, lengths)  # before the config, by which it is known
        if "tokenizer" in kept and not (begun and self.tokenizer.exists()):
            kept["tokenizer"].save(self.tokenizer)
        if "labels" in kept and not (begun and self.labels.exists()):
            _write_json(self.labels, kept["labels"])
        _write_json(self.data, data, indent=1)
        _write_json(self.config, thaw(config), indent=2)

    def trained_steps(self) -> int:
        """The step of the latest checkpoint; 0 where there is none."""
        return trained_steps(self.checkpoints)


def _write_json(path: Path, values: Any, **layout: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values, ensure_ascii=False, **layout) + "\n", encoding="utf-8")
    os.replace(part, path)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"model": {"d_model": 8}} -> {"model.d_model": 8}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def describe(data: Any) -> dict[str, Any]:
    """What is kept of the data of an experiment, to be compared when the run goes on."""
    kept = data.kept()
    described = {"sources": data.contents()}
    if "tokenizer" in kept:
        described["tokenizer"] = kept["tokenizer"].identity
    if "labels" in kept:
        described["labels"] = digest(list(kept["labels"]))
    return described


def _is_moved(key: str, here: dict[str, Any], there: dict[str, Any]) -> bool:
    """Whether it may only be the place of the data that has changed: their content is compared by itself."""
    kinds = [str(values.get(key)).partition(":")[0] for values in (here, there)]
    return key in LOCATIONS and kinds[0] == kinds[1]


def _is_free(key: str) -> bool:
    return key.startswith(FREE) and key not in FIXED


def _show(values: dict[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "none"
