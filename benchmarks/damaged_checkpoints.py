"""Damaged checkpoints: the share of damage that is noticed.

    python -m benchmarks.damaged_checkpoints [--trials 200] [--seed 0]

Saves the training state of configs/lm.py:tiny, damages a copy of it at random, restores it, and counts:
noticed (the checkpoint is refused), harmless (the state is bitwise the one that was saved), and silent
(neither, which must not be).
"""

import argparse
import collections
import random
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np

from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.untrusted import DamagedCheckpoint
from workdir.opening import open_without_data, read_config


def flip(files: list[Path], rng: random.Random) -> None:
    """One bit, at any byte of the checkpoint with equal probability."""
    (file,) = rng.choices(files, [path.stat().st_size for path in files])
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut(files: list[Path], rng: random.Random) -> None:
    """One file ends early."""
    file = rng.choice(files)
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def zero(files: list[Path], rng: random.Random) -> None:
    """Up to 4 KB of one file, as after a crash without a flush."""
    file = rng.choice(files)
    content, start = bytearray(file.read_bytes()), rng.randrange(file.stat().st_size)
    end = min(len(content), start + 4096)
    content[start:end] = bytes(end - start)
    file.write_bytes(content)


def delete(files: list[Path], rng: random.Random) -> None:
    """One file."""
    rng.choice(files).unlink()


DAMAGES = {damage.__name__: damage for damage in (flip, cut, zero, delete)}


def outcome(folder: Path, abstract, saved) -> str:
    """The outcome of opening a damaged checkpoint."""
    try:
        with Checkpoints(folder, write=False) as checkpoints:
            restored = jax.device_get(checkpoints.restore(abstract))
    except DamagedCheckpoint:
        return "noticed"
    same = jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), saved, restored)
    return "harmless" if all(jax.tree.leaves(same)) else "silent"


def main() -> None:
    """Prints a line for each kind of damage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    run, rng = open_without_data(read_config("configs/lm.py:tiny"), []), random.Random(flags.seed)
    with run.placed(), tempfile.TemporaryDirectory() as name:
        state, source = run.first_state(), Path(name) / "saved"
        with Checkpoints(source) as checkpoints:
            checkpoints.save(1, state)
        size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
        print(f"a checkpoint of {size:,} bytes", flush=True)
        for kind, damage in DAMAGES.items():
            counts: collections.Counter = collections.Counter()
            for trial in range(flags.trials):
                folder = Path(name) / f"{kind}{trial}"
                shutil.copytree(source, folder)
                damage([path for path in sorted(folder.rglob("*")) if path.is_file()], rng)
                counts[outcome(folder, run.abstract, jax.device_get(state))] += 1
                shutil.rmtree(folder)
            print(
                kind,
                *(f"{result}={counts[result]}" for result in ("noticed", "harmless", "silent")),
                flush=True,
            )


if __name__ == "__main__":
    main()
