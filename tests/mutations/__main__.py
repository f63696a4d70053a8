"""Which one-line mutations of the library do the tests catch?

    python -m tests.mutations [--only NAME] [--jobs 1] [--list]

Each mutation of `MUTATIONS` is made in a copy of the repository, alone, and the tests that should catch it
are run there: the quick ones, and if they pass the thorough ones. `--only` takes beginnings of names
(layers/cache, decoding/beam/length), separated by commas. Tests that fail are run without the mutation too,
once, and must pass then (`--unchecked`: they are not).
"""

import argparse
import concurrent.futures
import os
import queue
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.mutations.run import FAILED, NONE_COLLECTED, PASSED, run_tests
from tests.mutations.table import MUTATIONS, ROOT, Mutation

QUICK, THOROUGH = "not slow and not thorough", "thorough and not slow"


def copied(folder: Path) -> Path:
    """A copy of the files that git knows or would add."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def verdict(folder: Path, mutation: Mutation, checked: bool) -> str:
    """What becomes of a mutation in this copy, which is left as it was."""
    path = folder / mutation.file
    original = path.read_text()
    if original.count(mutation.find) != 1:
        return "stale"
    for name, marks in (("caught", QUICK), ("caught by thorough tests", THOROUGH)):
        path.write_text(original.replace(mutation.find, mutation.replacement))
        try:
            code = run_tests(folder, mutation.tests, marks)
        finally:
            path.write_text(original)
        if code == FAILED:
            broken = checked and not pass_anyway(folder, mutation.tests, marks)
            return "broken: the tests fail without it too" if broken else name
        if code not in (PASSED, NONE_COLLECTED):
            return f"broken: pytest ended with {code}"
    return "survived"


def pass_anyway(folder: Path, tests: tuple[str, ...], marks: str) -> bool:
    """Whether these tests pass without a mutation; each is run once."""
    if (tests, marks) not in _passing:
        _passing[tests, marks] = run_tests(folder, tests, marks) == PASSED
    return _passing[tests, marks]


_passing: dict[tuple[tuple[str, ...], str], bool] = {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at once")
    parser.add_argument("--list", action="store_true", help="print the mutations, and run nothing")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without mutations")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if m.name.startswith(tuple(options.only.split(",")))]
    if options.list:
        print(*(f"{m.name:45} {m.find!r} -> {m.replacement!r}" for m in chosen), sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{scratch}/cache")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        folders = queue.SimpleQueue[Path]()
        for i in range(options.jobs):
            folders.put(copied(Path(scratch) / f"copy{i}"))

        def judge(mutation: Mutation) -> str:
            folder, start = folders.get(), time.perf_counter()
            try:
                found = verdict(folder, mutation, not options.unchecked)
            finally:
                folders.put(folder)
            print(f"{mutation.name:45} {found:25} {time.perf_counter() - start:5.0f} s", flush=True)
            return found

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(judge, chosen))
    caught = sum(each.startswith("caught") for each in found)
    print(f"{caught} of {len(found)} caught, {100 * caught / max(1, len(found)):.0f} %")
    for kind in ("survived", "stale", "broken"):
        if names := [m.name for m, each in zip(chosen, found, strict=True) if each.startswith(kind)]:
            print(f"{kind}: {', '.join(names)}")
    return 0 if caught == len(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
