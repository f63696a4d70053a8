"""The files of a run's folder: reading them, checking them, writing them at the start of a training."""

import json
import sys
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, find_experiment
from transformer.config import flatten, to_values, with_defaults
from transformer.data.cache.content_digests import changes
from transformer.data.cache.disk_cache import digest, own_cache
from transformer.data.tokenization.tokenizer_settings import SETTINGS, TEMPLATE
from transformer.data.tokenization.tokenizers import TARGETS, Tokenizer
from transformer.errors import UserError
from transformer.run_folder import RunFolder, check_run_file
from transformer.safe_files import replace
from transformer.training.checkpoints.checkpoint import trained_steps
from workdir.compatibility.differences import differences
from workdir.compatibility.retired_keys import with_present_keys


def steps_of(folder: RunFolder) -> int:
    """The step of the latest complete checkpoint of a run; 0 if it has not started. Until then a new training
    overwrites all other files."""
    return trained_steps(folder.checkpoints)


def read_json(path: Path) -> Any:
    """The values in a JSON file of a run's folder, which may be from elsewhere.

    Raises:
      UserError: it is not a regular file of a bounded size, or not JSON.
    """
    check_run_file(path)
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from None


def write_json(path: Path, values: Any, **layout: Any) -> None:
    """Writes a file, and replaces it atomically if it is there."""
    replace(path, json.dumps(values, ensure_ascii=False, **layout) + "\n")


def stored_config(folder: RunFolder) -> dict[str, Any]:
    """The unchecked values of the run's config; keys that are newer than the folder have their defaults.

    Raises:
      UserError: it is not the folder of a run.
    """
    if not folder.config.exists():
        no_config = "has no config.json: it is not the folder of a run"
        raise UserError(f"--workdir: {folder.path} {no_config if folder.path.is_dir() else 'does not exist'}")
    values = read_json(folder.config)
    if not isinstance(values, dict):
        raise UserError(f"{folder.config}: expected the groups of a config, as JSON has them")
    if "overlap" not in (values.get("data") or ()):  # only runs older than this key have retired ones
        values = with_present_keys(values)
    data = values.get("data")
    if isinstance(data, dict) and data.get("cache_dir"):
        data["cache_dir"] = own_cache(str(data["cache_dir"]), folder.config)
    known = str(values.get("experiment")) in EXPERIMENTS
    return with_defaults(find_experiment(values["experiment"]).Config, values) if known else values


def stored_data(folder: RunFolder) -> dict[str, Any]:
    """Tokenizer and labels as stored by `write_start`, by name; {} if the run has not started."""
    stored: dict[str, Any] = {}
    if steps_of(folder) and folder.tokenizer.exists():
        for name in (folder.tokenizer.name, SETTINGS, TEMPLATE, TARGETS):
            check_run_file(folder.path / name)
        stored["tokenizer"] = Tokenizer.load(folder.tokenizer)
    if steps_of(folder) and folder.labels.exists():
        stored["labels"] = labels = read_json(folder.labels)
        if not isinstance(labels, list) or {type(label) for label in labels} - {str}:
            raise UserError(f"{folder.labels}: expected a list of the names of labels")
    return stored


def check_resumable(folder: RunFolder, config: Any) -> None:
    """Checks that a folder that exists is empty, or has a run that may be resumed with this config; and all
    of its files, for training writes to them.

    Raises:
      UserError: it has a different run or other files, or has trained for more steps than the config says.
    """
    if not folder.path.is_dir():
        raise UserError(f"--workdir: {folder.path} is a file")
    folder.vet()
    folder.vet_checkpoints()
    if not folder.config.exists():
        for path in (folder.path / name for name in RunFolder.names()):
            if path.exists() and path != folder.lock:
                raise UserError(f"--workdir: {path} exists without a config.json; choose another folder")
    if not (trained := steps_of(folder)):
        return
    here, there = flatten(to_values(config)), flatten(stored_config(folder))
    if here != there and (listed := differences(config, here, there, folder.data.exists())):
        raise UserError(
            f"--workdir: {folder.path} belongs to another config: {listed}; choose another folder, "
            "or continue in one with --mode=fork"
        )
    if trained > config.train.steps:
        raise UserError(
            f"config.train.steps: {config.train.steps}, but {folder.path} has trained {trained} steps already"
        )


def check_same_data(folder: RunFolder, data: Any) -> None:
    """Checks that a run that has started is resumed with the same data. Old runs that did not store their
    content are not checked.

    Raises:
      UserError: a file, another source or the tokenizer has changed.
    """
    if listed := changed_data(folder, data):
        raise UserError(
            f"--workdir: {folder.path} started with other data: {listed}; --accept_data continues with these"
        )


def changed_data(folder: RunFolder, data: Any, but: str = "") -> str:
    """The differences between the data that the run started with and these, except of the key `but`, in one
    line; "" if there are none, or nothing is known."""
    if not folder.data.exists():
        return ""
    now = describe(data)
    try:
        before = read_json(folder.data)
        sources = [{k: v for k, v in record["sources"].items() if k != but} for record in (before, now)]
        listed = [changes(*sources)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder.data}: not readable; --accept_data continues and rewrites it") from None
    files = [f"{name}.json differs" for name in ("tokenizer", "labels") if before.get(name) != now.get(name)]
    return ", ".join(filter(None, listed + files))


def check_stored_data(folder: RunFolder, data: Any) -> None:
    """Warns of a tokenizer or labels that are not those of the training: the model's tokens or outputs mean
    something else.

    Raises:
      UserError: their file is missing, and these data give different ones.
    """
    known = read_json(folder.data) if folder.data.exists() else {}
    for path in (folder.tokenizer, folder.labels) if isinstance(known, dict) else ():
        if known.get(path.stem) and known[path.stem] != identities(data).get(path.stem):
            if not path.exists():
                raise UserError(f"{path}: it is missing, and the present data give a different one")
            print(f"warning: {path} is not the one that the run was trained with", file=sys.stderr)


def describe(data: Any) -> dict[str, Any]:
    """The content of a run's data, to compare when it is resumed."""
    return {"sources": data.contents(), **identities(data)}


def identities(data: Any) -> dict[str, str]:
    """Digests of the tokenizer and the labels of these data, where they have them."""
    stored = data.kept()
    digests = {"tokenizer": stored["tokenizer"].identity} if "tokenizer" in stored else {}
    return digests | ({"labels": digest(list(stored["labels"]))} if "labels" in stored else {})


def read_lengths(folder: RunFolder, steps: int) -> list[tuple[int, int]]:
    """The changes of `train.steps` in a run that is resumed with `steps`, as (at, before): until step `at`
    the run was to have `before` steps. Several changes at the same step count as one."""
    known = read_json(folder.lengths) if folder.lengths.exists() else []
    if not isinstance(known, list) or any(not _is_pair(change) for change in known):
        raise UserError(f"{folder.lengths}: expected a list of pairs of steps, [[100, 200], ...]")
    trained = steps_of(folder)
    before = stored_config(folder)["train"]["steps"]
    if known and known[-1][0] == trained:
        _, before = known.pop()
    if before != steps:
        known.append((trained, before))
    return [(at, length) for at, length in known]


def _write_lengths(folder: RunFolder, steps: int) -> None:
    lengths = read_lengths(folder, steps) if steps_of(folder) else []
    if lengths or folder.lengths.exists():
        write_json(folder.lengths, lengths)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and [type(item) for item in value] == [int, int]


def read_fork(folder: RunFolder) -> dict[str, Any]:
    """Of what the run is a fork, and where it continues (`workdir.forking`); {} if it is not one."""
    record = read_json(folder.fork) if folder.fork.exists() else {}
    kinds = {"step": int, "batch": int, "row": int, "rate": list, "changed": dict, "from": str}
    known = isinstance(record, dict) and all(type(record.get(k, t())) is t for k, t in kinds.items())
    if not known or (folder.fork.exists() and not ("step" in record and {"batch", "row"} & record.keys())):
        raise UserError(f"{folder.fork}: expected of which run this is a fork, with its step and batch")
    if [type(item) for item in record.get("rate", ())] not in ([], [int, int], [int, float]):
        raise UserError(f"{folder.fork}: rate: expected a step and the learning rate before it")
    return record


def write_start(folder: RunFolder, config: Any, data: Any) -> None:
    """Stores the config and the content of the data, and unless the run has started tokenizer and labels.
    Files are replaced atomically."""
    started, stored = steps_of(folder) > 0, data.kept()
    described = describe(data)  # reads the data, which may fail, before anything is written
    if tallies := data.tallies("train", "validation"):
        described["left_out"] = tallies
    folder.path.mkdir(parents=True, exist_ok=True)
    if started or folder.lengths.exists():
        _write_lengths(folder, config.train.steps)  # before the config, from which changes are detected
    if "tokenizer" in stored and not (started and folder.tokenizer.exists()):
        stored["tokenizer"].save(folder.tokenizer)
    if "labels" in stored and not (started and folder.labels.exists()):
        write_json(folder.labels, stored["labels"])
    write_json(folder.data, described, indent=1)
    write_json(folder.config, to_values(config), indent=2)
