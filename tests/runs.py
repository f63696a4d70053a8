"""Small runs for the tests of whole programs: a corpus, and launch.py inside this process or outside."""

import contextlib
import io
import math
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh
from matplotlib.figure import Figure
from PIL import Image

from transformer.training import parallel
from transformer.training.hooks import Hook
from transformer.training.state import State
from workdir import opening
from workdir import session as command

ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def in_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Changes to the repository's folder, with caches of data and compiled programs apart from the user's,
    shared by all tests of a session and the processes that they start; and runs take `mesh_of_few`."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    programs = shared / "programs"
    settings = {"jax_compilation_cache_dir": str(programs), "jax_persistent_cache_min_compile_time_secs": 0.1}
    before = {name: getattr(jax.config, name) for name in settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(Figure, "savefig", save_blank)
        patch.setattr(parallel, "make_mesh", mesh_of_few)
        patch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
        for name, value in settings.items():
            patch.setenv(name.upper(), str(value))
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


DEVICES = 2
"""The devices of a run in this process whose config asks for none: enough to divide a batch over."""

MAKE_MESH = parallel.make_mesh


def mesh_of_few(config: parallel.MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of a config over as many devices as its axes ask for, where one is -1 over `DEVICES` times as
    many or, if there are no more, as many; `make_mesh` itself would take all eight."""
    every = jax.devices() if devices is None else devices
    sizes = [getattr(config, axis) for axis in parallel.AXES]
    asked = math.prod(size for size in sizes if size > 0)
    if devices is None:
        numbers = (DEVICES * asked, asked) if -1 in sizes else (asked,)
        every = next((every[:number] for number in numbers if len(every) % number == 0), every)
    return MAKE_MESH(config, every)


SAVE = Figure.savefig
"""The original `Figure.savefig`, which draws."""


def save_blank(figure: Figure, path: str | Path, **options: object) -> None:
    """A PNG of one white pixel in place of a figure; other formats are drawn."""
    if Path(path).suffix != ".png":
        return SAVE(figure, path, **options)
    pixel = io.BytesIO()
    Image.new("RGB", (1, 1), "white").save(pixel, "PNG")
    Path(path).write_bytes(pixel.getvalue())
    return None


def write_corpus(folder: Path, documents: int = 60) -> str:
    """Writes files of random words; returns their `data.source`."""
    words = ["alpha", "beta", "gamma", "delta", "épsilon", "\n", "zeta;", "(eta)"]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        text = " ".join(random.choices(words, k=random.randrange(20, 80)))
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return f"text:{folder}/*.txt"


def state(folder: Path, step: int | str = "latest") -> State:
    """The state in a checkpoint of a run."""
    run = opening.reopen_run(folder)
    with run.checkpoints(write=False) as checkpoints:
        return jax.device_get(checkpoints.restore(run.abstract, step))


def tiny(source: str, workdir: Path, *more: str) -> list[str]:
    """The arguments that train the smallest language model."""
    return ["--config=configs/lm.py:tiny", f"--config.data.source={source}", f"--workdir={workdir}", *more]


def train(source: str, workdir: Path, *options: str, hooks: Sequence[Hook] = ()) -> str:
    """Trains the run of `tiny` with callbacks in this process; returns why it ended."""
    given = [f"--config.data.source={source}", *options]
    overrides = [(key, value) for key, _, value in (text[9:].partition("=") for text in given)]
    return command.train(str(workdir), overrides, "configs/lm.py:tiny", hooks=hooks)


def start(arguments: list[str], **options) -> subprocess.Popen:
    """`python launch.py` with the arguments, as a user starts it, on one device."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT} | options
    return subprocess.Popen([sys.executable, "launch.py", *arguments], **options)


def free_port() -> int:
    """A port that no one listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def listing(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {
        os.path.relpath(path, folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def measured(out: str) -> dict[str, float]:
    """The values in what --mode=evaluate printed."""
    found = (re.match(r"([\w/]+) ([-+.\w]+)(  .*)?$", line) for line in out.splitlines())
    return {line[1]: float(line[2]) for line in found if line and "/" in line[1]}
