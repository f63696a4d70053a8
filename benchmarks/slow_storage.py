"""Time that training waits for checkpoints on slow storage.

    python -m benchmarks.slow_storage [--kilobytes=50] [--latency=0.05] [--steps=20000] [--every=100]

Trains configs/lm.py:tiny with every write below checkpoints/ slowed: a small library, compiled here with cc
and loaded before all others, sleeps for each piece that is written. Prints the time that the loop has spent
in saves, without the last one, and its share of the time of training.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void slow(int fd, ssize_t size) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || size <= 0) return;
    path[length] = 0;
    if (strstr(path, "/checkpoints/"))
        usleep(1e6 * (atof(getenv("LATENCY")) + size / (1e3 * atof(getenv("KILOBYTES")))));
}
ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    ssize_t done = real(fd, data, size);
    slow(fd, done);
    return done;
}
ssize_t writev(int fd, const void *parts, int count) {
    ssize_t (*real)(int, const void *, int) = dlsym(RTLD_NEXT, "writev");
    ssize_t done = real(fd, parts, count);
    slow(fd, done);
    return done;
}
"""


def train(folder: str, steps: int, every: int) -> None:
    """Trains in this process, and prints what it has measured as JSON."""
    import launch
    from transformer.training.checkpoints.resilience import ResilientCheckpoints

    spent, begun, saves = [], [], []
    original = ResilientCheckpoints.save

    def save(self: ResilientCheckpoints, step: int, *arguments) -> None:
        start = time.monotonic()
        before = self._step
        original(self, step, *arguments)
        begun.append(start)
        if step < steps:
            spent.append(time.monotonic() - start)
            saves.append(self._step not in (None, before))

    ResilientCheckpoints.save = save  # type: ignore[method-assign]
    keys = {"train.steps": steps, "train.checkpoint_every": every, "train.log_every": every}
    arguments = [f"--config.{key}={value}" for key, value in keys.items()]
    launch.main(["--config=configs/lm.py:tiny", f"--workdir={folder}/run", *arguments])
    seconds = begun[-1] - begun[0]
    print(json.dumps({"seconds": seconds, "spent": sum(spent[1:]), "due": len(spent), "saved": sum(saves)}))


def main() -> None:
    """Prints a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=float, default=50, help="kilobytes per second")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds for each write")
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.folder:
        train(flags.folder, flags.steps, flags.every)
        return
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "slow.c"), Path(folder, "slow.so")
        source.write_text(LIBRARY)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        slow = {"LD_PRELOAD": str(library), "KILOBYTES": str(flags.kilobytes), "LATENCY": str(flags.latency)}
        command = [sys.executable, "-m", "benchmarks.slow_storage", f"--folder={folder}"]
        command += [f"--steps={flags.steps}", f"--every={flags.every}"]
        done = subprocess.run(command, env=os.environ | slow, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{figures['seconds']:.0f} s of training; {figures['due']} tries, {figures['saved']} saves started; "
        f"{figures['spent']:.1f} s in saves, {figures['spent'] / figures['seconds']:.1%} of the time"
    )


if __name__ == "__main__":
    main()
