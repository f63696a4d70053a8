"""Does a run compute what its model says? Compares it with float64, without its kernels and shortcuts.

python launch.py --mode=verify --config=configs/lm.py:tiny --config.model.dtype=bfloat16
python launch.py --mode=verify --workdir=runs/lm

On real batches: the terms of the loss, all gradients, an update, an evaluation and some steps of decoding,
by the program that would train, with its kernels, types, mesh and microbatches; and in float64 by one that
has none of these. Prints the error of each part beside the bound that its types and sizes give. The exit
code is 1 if one is beyond it; then the first module whose output differs is named. It changes nothing.
"""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import NO_CONFIG, NO_WORKDIR, place
from transformer.errors import UserError

if TYPE_CHECKING:
    from commands.verification.rounding_errors import Row
    from workdir.opening import Overrides


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    missing = f"{NO_WORKDIR}, or {NO_CONFIG}"
    parser.set_defaults(missing=missing, suffix="verify", alone=True)
    config = "a config file, configs/lm.py, or a preset of it; without it, the run in --workdir"
    parser.add_argument("--config", type=place, default="", help=config)
    parser.add_argument("--steps", type=int, default=2, help="steps trained before, of a new run (2)")
    parser.add_argument("--tokens", type=int, default=4, help="tokens that are decoded, greedily (4)")


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints the table; returns 0, or 1 if a part is beyond its bound."""
    from commands.verification.program import Pair, opened

    for name, value in (("steps", flags.steps), ("tokens", flags.tokens)):
        if value < 0:
            raise UserError(f"--{name}: {value}; expected 0 or more")
    with tempfile.TemporaryDirectory() as folder:
        run, notes = opened(flags, overrides, str(Path(folder) / "run"))
        pair = Pair(run, flags.steps if flags.config else 0)
        rows = [*pair.rows(flags.tokens)]
        for note in notes:
            print(note)
        print_table(rows)
        if failed := [row for row in rows if not row.passes]:
            print(f"{len(failed)} of {len(rows)} beyond their bounds; {pair.culprit()}")
            return 1
    print(f"all {len(rows)} within their bounds")
    return 0


def print_table(rows: "list[Row]") -> None:
    """Prints each part with its error, its bound and whether it is within."""
    width = max(len(row.name) for row in rows)
    print(f"{'':10} {'':{width}} {'error':>8} {'bound':>8}")
    for row in rows:
        mark = "" if row.passes else "  FAILS"
        print(f"{row.part:10} {row.name:{width}} {row.error:8.1e} {row.bound:8.1e}{mark}")
