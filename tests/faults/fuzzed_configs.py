"""Configs that are changed at random: each is refused in one line, or trains.

    python -m tests.faults.fuzzed_configs [--accepted 100] [--seed 0]

One key of the `tiny` preset of a config is dropped, misspelt, nested, or given another value. Changes that
the checks of a config accept make one training step, if the model and the batch stay small: that ends in
`trained`, in a line by what only the data or the model show, or in a traceback, which must not be.
"""

import argparse
import collections
import contextlib
import copy
import math
import random
import string
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests import runs
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from workdir.opening import check_config, open_to_train, read_config

ODD = (
    *(0, 1, -1, 2**31, 2**70, -(2**70), 3.7, 1e30, 1e-400, 1e400, -1e400, float("nan")),
    *(None, True, False, "", "x", "None", "-1", "../..", "\x00", "é" * 10, b"x", (1, 2)),
    *([], {}, ["x"], {"a": 1}),
)
"""Values that few keys take."""

SMALL = 5_000_000
"""The most parameters of a model, and numbers in a batch, with which a step is made."""


def configs() -> list[str]:
    """All config files, papers and studies among them."""
    found = sorted(path for path in (runs.ROOT / "configs").rglob("*.py") if "get_config" in path.read_text())
    return [str(path.relative_to(runs.ROOT)) for path in found]


def change(values: dict, rng: random.Random) -> tuple[dict, str]:
    """A copy of the values in which one key is dropped, misspelt, nested, or of another value; and what."""
    values = copy.deepcopy(values)
    names, node = [rng.choice(sorted(values))], values
    while isinstance(node[names[-1]], dict) and node[names[-1]] and rng.random() < 0.9:
        node = node[names[-1]]
        names.append(rng.choice(sorted(node)))
    key, how = names[-1], rng.choice(("drop", "misspell", "nest", *["change"] * 5))
    if how == "drop":
        del node[key]
    elif how == "misspell":
        node[key + rng.choice(string.ascii_letters)] = node.pop(key)
    elif how == "nest":
        node[key] = {key: node[key]}
    else:
        node[key] = rng.choice(ODD)
    return values, f"{how} {'.'.join(names)}: {node.get(key)!r}"


def accepted(config: str, rng: random.Random) -> tuple[dict, str]:
    """The first changed values of a config that its checks accept; and what is changed."""
    plain = read_config(config)
    while True:
        values, what = change(plain, rng)
        try:
            check_config(copy.deepcopy(values))
            return values, what
        except UserError:
            continue


def one_step(values: dict, folder: Path) -> str:
    """How a single training step ends, of which nothing is written; folders that a key names as they come,
    data.cache_dir above all, are made in one that is removed."""
    with tempfile.TemporaryDirectory() as there, contextlib.chdir(there):
        return _one_step(values, folder)


def _one_step(values: dict, folder: Path) -> str:
    import jax

    try:
        run = open_to_train(RunFolder(folder), (), values, False, ())
        sizes = [leaf.size for leaf in jax.tree.leaves(run.abstract.params)]
        with run.placed():
            batch = next(iter(run.loader.iterate(0)))
            if max(sum(sizes), *(math.prod(x.shape) for x in batch.values())) > SMALL:
                return "large"
            state, metrics = run.jitted()(run.first_state(), run.put(batch))
            jax.block_until_ready((state, metrics))
    except UserError as error:
        return f"line: {error}" if str(error) and "\n" not in str(error) else f"lines: {error}"
    except Exception as error:
        traceback.print_exc()
        return f"traceback: {type(error).__name__}: {str(error)[:300]}"
    return "trained"


def main() -> None:
    """Prints each that is not trained, those that take more than ten seconds, and how many ended how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accepted", type=int, default=100, help="changes that are accepted")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    rng, counts = random.Random(flags.seed), collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        for number in range(flags.accepted):
            values, what = accepted(rng.choice(configs()) + ":tiny", rng)
            began = time.process_time()
            ended = one_step(values, Path(name) / str(number))
            seconds = time.process_time() - began
            if ended != "trained" or seconds > 10:
                print(f"{values.get('experiment')}: {what}: {ended} ({seconds:.0f} s)", flush=True)
            counts[ended.partition(":")[0]] += 1
    print(dict(counts))
    sys.exit(bool(counts["traceback"] or counts["lines"]))


if __name__ == "__main__":
    main()
