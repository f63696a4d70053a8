"""The folder of a run, with everything to resume, evaluate and predict."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, find_experiment
from transformer.config import flatten, to_values, with_defaults
from transformer.data.cache.content_digests import changes
from transformer.data.cache.disk_cache import digest, own_cache
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError
from transformer.json_text import parse_json
from transformer.run_folder import REMOTE, UNUSABLE, Inside, RunFolder, why_not_local
from transformer.safe_files import replace
from transformer.training.checkpoints.checkpoint import trained_steps
from workdir.compatibility.differences import differences
from workdir.compatibility.retired_keys import with_present_keys


class Workdir(RunFolder):
    """A run's folder: reading, writing and checks."""

    lock = Inside("lock")  # held while training (see `exclusive`)

    def __init__(self, path: str | os.PathLike) -> None:
        """`path` is a local folder, without the name of a checkpoint."""
        if REMOTE.search(str(path)) or UNUSABLE.search(os.path.abspath(path)):
            raise UserError(f"--workdir: {path} {why_not_local(path)}")
        super().__init__(path)

    @property
    def begun(self) -> bool:
        """Whether there is a complete checkpoint. Without one, all other files are overwritten."""
        return self.trained_steps() > 0

    def read_config(self) -> dict[str, Any]:
        """The unchecked values of the run's config; keys that are newer than the folder have their defaults.

        Raises:
          UserError: it is not the folder of a run.
        """
        self.vet()
        if not self.config.is_file():
            raise UserError(f"--workdir: {self.path} {self._no_run()}")
        values = read_json(self.config)
        if not isinstance(values, dict):
            raise UserError(f"{self.config}: expected the groups of a config, as JSON has them")
        if "overlap" not in (values.get("data") or ()):  # only runs older than this key have retired ones
            values = with_present_keys(values)
        data = values.get("data")
        if isinstance(data, dict) and data.get("cache_dir"):
            data["cache_dir"] = own_cache(str(data["cache_dir"]), self.config)
        known = str(values.get("experiment")) in EXPERIMENTS
        return with_defaults(find_experiment(values["experiment"]).Config, values) if known else values

    def _no_run(self) -> str:
        no_config = "has no config.json: it is not the folder of a run"
        return no_config if self.path.is_dir() else "does not exist"

    def check(self, config: Any) -> None:
        """Checks that the folder is empty or missing, or has a run that may be resumed with this config.

        Raises:
          UserError: it has another run or other files, or has trained for more steps than the config says.
        """
        if not self.path.is_dir():
            raise UserError(f"--workdir: {self.path} is a file")
        self.vet()
        self.vet_checkpoints()
        if not self.config.exists():
            entries = [entry for entry in vars(RunFolder).values() if isinstance(entry, Inside)]
            for path in (self.path / entry.name for entry in entries):
                if path.exists():
                    raise UserError(
                        f"--workdir: {path} is there without a config.json; choose another folder"
                    )
        if not self.begun:
            return
        here, there = flatten(to_values(config)), flatten(self.read_config())
        if here != there and (listed := differences(config, here, there, self.data.exists())):
            raise UserError(
                f"--workdir: {self.path} belongs to another config: {listed}; choose another folder, "
                "or continue in one with --mode=fork"
            )
        steps, trained = config.train.steps, self.trained_steps()
        if trained > steps:
            raise UserError(
                f"config.train.steps: {steps}, but {self.path} has trained {trained} steps already"
            )

    def read_kept(self) -> dict[str, Any]:
        """Tokenizer and labels as stored by `write`, by name; {} if the run has not started."""
        kept: dict[str, Any] = {}
        if self.begun and self.tokenizer.exists():
            kept["tokenizer"] = Tokenizer.load(self.tokenizer)
        if self.begun and self.labels.exists():
            kept["labels"] = labels = read_json(self.labels)
            if not isinstance(labels, list) or {type(each) for each in labels} != {str}:
                raise UserError(f"{self.labels}: expected a list of the names of labels")
        return kept

    def check_data(self, data: Any) -> None:
        """Checks that a run that has started is resumed with the same data. Old runs that did not store their
        content are not checked.

        Raises:
          UserError: a file, another source or the tokenizer has changed.
        """
        if listed := self.changes_of(data):
            raise UserError(
                f"--workdir: {self.path} started with other data: {listed}; --accept_data continues with "
                "these"
            )

    def changes_of(self, data: Any, but: str = "") -> str:
        """The differences between the data that the run started with and these, except of the key `but`, in
        one line; "" if there are none, or nothing is known."""
        if not self.data.exists():
            return ""
        now = describe(data)
        try:
            before = parse_json(self.data.read_bytes())
            sources = [{k: v for k, v in each["sources"].items() if k != but} for each in (before, now)]
            found = [changes(*sources)]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{self.data}: not readable; --accept_data continues and rewrites it") from None
        for name in ("tokenizer", "labels"):
            if before.get(name) != now.get(name):
                found.append(f"{name}.json differs")
        return ", ".join(filter(None, found))

    def check_kept(self, data: Any) -> None:
        """Warns of a tokenizer or labels that are not those of the training: the model's tokens or outputs
        mean something else.

        Raises:
          UserError: their file is gone, and they are not by these data what they were.
        """
        known = read_json(self.data) if self.data.exists() else {}
        for path in (self.tokenizer, self.labels) if isinstance(known, dict) else ():
            if known.get(path.stem) and known[path.stem] != identities(data).get(path.stem):
                _is_another(path)

    def read_lengths(self, steps: int) -> list[tuple[int, int]]:
        """The changes of `train.steps` in a run that is resumed with `steps`, as (at, before): until step
        `at` the run was to have `before` steps. Several changes at the same step count as one."""
        known = read_json(self.lengths) if self.lengths.exists() else []
        if not isinstance(known, list) or any(not _is_pair(each) for each in known):
            raise UserError(f"{self.lengths}: expected a list of pairs of steps, [[100, 200], ...]")
        trained = self.trained_steps()
        before = self.read_config()["train"]["steps"]
        if known and known[-1][0] == trained:
            _, before = known.pop()
        if before != steps:
            known.append((trained, before))
        return [(at, length) for at, length in known]

    def read_fork(self) -> dict[str, Any]:
        """Of what the run is a fork, and where it continues (`workdir.forking`); {} if it is not one."""
        found = read_json(self.fork) if self.fork.exists() else {}
        kinds = {"step": int, "batch": int, "row": int, "rate": list, "changed": dict, "from": str}
        known = isinstance(found, dict) and all(type(found.get(k, t())) is t for k, t in kinds.items())
        if not known or (self.fork.exists() and not ("step" in found and {"batch", "row"} & found.keys())):
            raise UserError(f"{self.fork}: expected of which run this is a fork, with its step and batch")
        if [type(each) for each in found.get("rate", ())] not in ([], [int, int], [int, float]):
            raise UserError(f"{self.fork}: rate: expected a step and the learning rate before it")
        return found

    def write(self, config: Any, data: Any) -> None:
        """Stores the config and the content of the data, and unless the run has started tokenizer and labels.
        Files are replaced atomically."""
        begun, kept, described = self.begun, data.kept(), describe(data)  # reads the data: it may fail
        described |= {"left_out": tallies} if (tallies := data.tallies("train", "validation")) else {}
        self.path.mkdir(parents=True, exist_ok=True)
        lengths = self.read_lengths(config.train.steps) if begun else []
        if lengths or self.lengths.exists():
            write_json(self.lengths, lengths)  # before the config, from which changes are detected
        if "tokenizer" in kept and not (begun and self.tokenizer.exists()):
            kept["tokenizer"].save(self.tokenizer)
        if "labels" in kept and not (begun and self.labels.exists()):
            write_json(self.labels, kept["labels"])
        write_json(self.data, described, indent=1)
        write_json(self.config, to_values(config), indent=2)

    def trained_steps(self) -> int:
        """The step of the latest checkpoint, or 0."""
        return trained_steps(self.checkpoints)


def read_json(path: Path) -> Any:
    """The values in a file; raises `UserError` if it is not JSON."""
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from None


def _is_another(path: Path) -> None:
    if not path.exists():
        raise UserError(f"{path}: it is missing, and the present data give a different one")
    print(f"warning: {path} is not the one that the run was trained with", file=sys.stderr)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [int, int]


def write_json(path: Path, values: Any, **layout: Any) -> None:
    """Writes a file, and replaces it atomically if it is there."""
    replace(path, json.dumps(values, ensure_ascii=False, **layout) + "\n")


def describe(data: Any) -> dict[str, Any]:
    """The content of a run's data, to compare when it is resumed."""
    return {"sources": data.contents(), **identities(data)}


def identities(data: Any) -> dict[str, str]:
    """Digests of the tokenizer and the labels of these data, where they have them."""
    found, kept = {}, data.kept()
    if "tokenizer" in kept:
        found["tokenizer"] = kept["tokenizer"].identity
    if "labels" in kept:
        found["labels"] = digest(list(kept["labels"]))
    return found
