"""Provenance: the command, the hardware and the versions of each start of a run's training."""

import datetime
import os
import platform
import re
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer import ROOT
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from workdir.folder import read_json, steps_of, write_json
from workdir.included import INCLUDED

if TYPE_CHECKING:
    from transformer.training.run import Run
    from workdir.opening import ConfigSource, Overrides

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "tokenizers", "numpy")
"""Packages whose versions are kept."""


def record(run: "Run", folder: RunFolder, command: str) -> None:
    """Adds a start at the folder's latest checkpoint to `starts.json`; a run that has not started has one."""
    step = steps_of(folder)
    before = read_starts(folder) if step else []
    write_json(folder.starts, [*before, {"step": step, "command": command, **surroundings(run)}], indent=1)


def read_starts(folder: RunFolder) -> list[dict[str, Any]]:
    """The starts in the folder, in order; none in folders that are older than the file.

    Raises:
      UserError: the file is damaged.
    """
    starts = read_json(folder.starts) if folder.starts.is_file() else []
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        raise UserError(f"{folder.starts}: expected a list of the starts of the training; move it away")
    return starts


def surroundings(run: "Run") -> dict[str, Any]:
    """Date, devices, machine, versions and the commit of the code."""
    import jax

    devices = run.mesh.devices.flat[0]
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "devices": f"{run.mesh.size} x {devices.device_kind}",
        "mesh": {name: size for name, size in run.mesh.shape.items() if size > 1},
        "processes": jax.process_count(),
        "processor": _processor(),
        "cores": _cores(),
        "memory_gb": _memory(),
        "system": platform.platform(),
        "versions": versions(),
        "code": _commit(),
    }


def versions() -> dict[str, str]:
    """The versions of Python and of `LIBRARIES`."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def shell(*arguments: str) -> str:
    """A suggested command, as it is written in a shell."""
    return shlex.join(["python", "launch.py", *INCLUDED, *arguments])


def command_line(config: "ConfigSource", workdir: str, overrides: "Overrides") -> str:
    """The command that starts such a training; "" if the config is not a file, as in a notebook."""
    if not isinstance(config, str):
        return ""
    flags = [f"--config={config}"] if config else []
    keys = [f"--config.{key}={value}" for key, value in overrides]
    return shell(*flags, f"--workdir={workdir}", *keys)


def command(folder: RunFolder, *arguments: str) -> str:
    """A shell command on the run's folder."""
    return shell(f"--workdir={folder.path}", *arguments)


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):  # not POSIX
        return None


def _commit() -> str:
    """The commit of this code, with "-dirty" if files were changed; "" where that is not known."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
