"""Checks that all processes of a run have the same code, folder, config, data and tokenizer, before it
starts.

Every process must call them, for they ask one another.
"""

import contextlib
import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from transformer import ROOT, distributed
from transformer.config import flatten, to_values
from transformer.data.cache.disk_cache import digest
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.tracebacks import is_users
from workdir.folder import describe, steps_of
from workdir.lock import holding
from workdir.provenance import versions

OF_A_HOST = ("data.cache_dir", "data.workers")
"""Keys that may differ between processes: they change nothing that is computed."""

PACKAGES = ("commands", "experiments", "transformer", "workdir")
"""The packages of this repository. A command imports some of their modules late, so that all are compared."""

SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
"""Settings of JAX that change what is computed."""

APPEAR_SECONDS = 20.0
"""Seconds that a shared file system may take to show a file written by a different host."""

MAX_LISTED = 4
"""The number of differences, and of processes with the same value, that an error lists."""


def check_code(*files: str) -> None:
    """Checks that all processes run the same code: the packages of this repository, the programs `files` ("":
    none) and what they have imported so far, with the same libraries and `SETTINGS`.

    Raises:
      UserError: some do not, as where a host has another commit or a changed file; on all of them.
    """
    programs = {**_packages(), **_modules(), **_programs(files)}
    code = {name: _described(path) for name, path in programs.items()}
    _check_same(code, "all processes must run the same code: check out one commit on all hosts")
    settings = {name: getattr(jax.config, name) for name in SETTINGS if hasattr(jax.config, name)}
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        words = os.environ.get(name, "").split()
        settings[name] = " ".join(sorted(word for word in words if not word.startswith("--xla_dump")))
    _check_same(versions() | settings, "all processes need the same libraries and settings of JAX")


def _packages() -> dict[str, Path]:
    """Every file of code in this repository's packages, by its path in the repository."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    names = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "launch.py", *files)}
    return {name: path for name, path in names.items() if "/." not in name}


def _programs(files: tuple[str, ...]) -> dict[str, Path]:
    """The files that exist, found as config files are."""
    files_by_name = {name: Path(name) if Path(name).is_file() else ROOT / name for name in files if name}
    return {name: path for name, path in files_by_name.items() if path.is_file()}


def _modules() -> dict[str, Path]:
    """The files of the user's modules that are imported, by the modules' names."""
    files = {name: Path(getattr(module, "__file__", None) or "") for name, module in [*sys.modules.items()]}
    return {f"the module {name}": path for name, path in files.items() if is_users(path)}


def _described(path: Path) -> list:
    """The size and digest of a file."""
    content = path.read_bytes()
    return [len(content), hashlib.blake2b(content, digest_size=10).hexdigest()]


def check_folder(folder: RunFolder) -> None:
    """Checks that the folder is one for all processes, where all can read what the first one writes, and that
    they find the same config and checkpoint in it. What is made for that is removed again.

    Raises:
      UserError: it is not, as on disks of their own, or it cannot be written; on all of them.
    """
    remedy = f"--workdir: {folder.path} must be one folder, on a disk that all processes share"
    with contextlib.ExitStack() as stack:
        with distributed.shared_errors():
            token = stack.enter_context(_token(folder.path)) if jax.process_index() == 0 else ""
        name = distributed.gather_texts(token)[0]
        answers = distributed.gather_texts("" if _appears(folder.path / name) else "it is not there")
    if unread := [number for number, answer in enumerate(answers) if answer]:
        raise UserError(f"{remedy}: {_processes(unread)} cannot read what process 0 writes there")
    contents = {"config.json": folder.config.is_file(), "the latest checkpoint": steps_of(folder)}
    _check_same(contents, remedy)


@contextlib.contextmanager
def _token(folder: Path) -> Iterator[str]:
    """The name of a new file in the folder, which is made if it is missing, for as long as the context."""
    name = f".shared-{secrets.token_hex(8)}"
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with holding(folder / name):
            yield name
    finally:
        for path in missing:
            with contextlib.suppress(OSError):  # another command may have started there
                path.rmdir()


def _appears(path: Path) -> bool:
    """Whether a file is there within `APPEAR_SECONDS`."""
    deadline = time.monotonic() + APPEAR_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def check_config(config: Any) -> None:
    """Checks that all processes have the same config but for `OF_A_HOST`, and the same code where the config
    file has imported more of it.

    Raises:
      UserError: some do not; on all of them.
    """
    check_code()
    values = flatten(to_values(config))
    flat = {f"config.{key}": value for key, value in values.items() if key not in OF_A_HOST}
    _check_same(flat, "start all processes with the same config")


def check_data(data: Any, sets: Mapping[str, str]) -> None:
    """Checks that all processes have the same content of every source and of the sources of `evaluate.sets`,
    and the same tokenizer and labels.

    Raises:
      UserError: some do not; on all of them.
    """
    with distributed.shared_errors():
        description = describe(data)
        sources = {f"data.{key}": files for key, files in description.pop("sources").items()}
        for name, source in sets.items():
            opened = data.sources(f"validation of {source}")
            sources[f"evaluate.sets.{name}"] = {
                at: checksum for part in opened for at, checksum in part.content.items()
            }
    contents = {
        f"{key}: {name}": checksum for key, files in sources.items() for name, checksum in files.items()
    }
    _check_same(contents, "all processes must read the same data")
    _check_same(description, "data.tokenizer: all processes need the same tokenizer and labels")


def _check_same(facts: dict[str, Any], remedy: str) -> None:
    """Raises on every process if what they found differs, with their values of the keys that differ."""
    if len({*distributed.gather_texts(digest(facts))}) == 1:
        return
    by_process = [json.loads(text) for text in distributed.gather_texts(json.dumps(facts))]
    different = []
    for key in dict.fromkeys(key for facts_of_process in by_process for key in facts_of_process):
        holders: dict[str, list[int]] = {}
        for number, facts_of_process in enumerate(by_process):
            holders.setdefault(
                _shown(facts_of_process[key]) if key in facts_of_process else "missing", []
            ).append(number)
        if len(holders) > 1:
            listed = ", ".join(f"{value} on {_processes(numbers)}" for value, numbers in holders.items())
            different.append(f"{key} ({listed})")
    raise UserError(f"the processes differ in {_some(different)}; {remedy}")


def _shown(value: Any) -> str:
    """A value in an error; `contents_of` describes files by size and digest."""
    is_file = isinstance(value, list) and [*map(type, value)] == [int, str]
    return f"{value[0]:,} bytes {value[1][:6]}" if is_file else repr(value)


def _processes(numbers: list[int]) -> str:
    return f"process{'es' if len(numbers) > 1 else ''} {_some([*map(str, numbers)])}"


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more
