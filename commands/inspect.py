"""Looks into a model: what layers, heads and units compute, on a text or on the data of the run.

python launch.py --workdir=runs/lm --mode=inspect --prompt="def f(x):" --instrument=lens
python launch.py --workdir=runs/lm --mode=inspect --prompt="a = 1" --against="a = 2" --instrument=patching
"""

import argparse
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import add_step, place, text
from transformer.errors import UserError, printable
from transformer.interpret.instruments import BATCHES, INSTRUMENTS, PROPERTIES
from workdir.outputs import PICTURES, check_picture

if TYPE_CHECKING:
    from workdir.opening import Overrides

READ = ("prompt", "against", "site", "batches", "steps", "property")
"""Flags that instruments name."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(alone=True)
    add = parser.add_argument
    meaning = "; ".join(f"{name}: {instrument.shows}" for name, instrument in INSTRUMENTS.items())
    add("--instrument", metavar="NAME", choices=[*INSTRUMENTS], default="lens", help=meaning)
    add("--prompt", type=text, help="the text, or of a model of images a file")
    meaning = "a text of as many tokens with another next token (of attribution: the second one of --prompt)"
    add("--against", type=text, help=meaning)
    add("--site", help="what is replaced: input, attention, feed_forward (input); or which values are read")
    add("--batches", type=int, help=f"the most batches that are read ({BATCHES})")
    add("--steps", type=int, help="the steps of training of what an instrument trains")
    add("--property", choices=PROPERTIES, help="what probes predict of a token (position)")
    kinds = ", ".join(PICTURES)
    add("--picture", type=place, help=f"a file, {kinds} (inspect_INSTRUMENT.png in the folder of the run)")
    add_step(parser)


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints a table, and draws it."""
    check(flags)
    from commands.support.inspected import subject_of
    from transformer.visualization.attention_maps import draw_grid
    from workdir.opening import load, named

    run, params = load(flags.workdir, overrides, flags.step)
    module = importlib.import_module(f"transformer.interpret.instruments.{flags.instrument}")
    with run.placed():
        table = module.table(subject_of(run, params, flags))
    picture = flags.picture or named(flags.workdir).path / f"inspect_{flags.instrument}.png"
    draw_grid(table.values_rc, table.rows, table.columns, Path(picture), table.title, table.texts)
    print("\n".join(map(printable, table.lines())), f"{picture} shows them", sep="\n")
    return 0


def check(flags: argparse.Namespace) -> None:
    """Checks the flags before a model is loaded."""
    instrument, kind = INSTRUMENTS[flags.instrument], f"--instrument={flags.instrument}"
    for name in READ:
        value = vars(flags)[name]
        if value is None and name in instrument.needs:
            raise UserError(f"--{name}: {kind} needs it; {MISSING[name]}")
        if value is not None and name not in instrument.needs + instrument.may:
            readers = [reader for reader, its in INSTRUMENTS.items() if name in its.needs + its.may]
            raise UserError(f"--{name}: {kind} does not read it; expected one of {', '.join(readers)}")
    if flags.site is not None and instrument.sites and flags.site not in instrument.sites:
        raise UserError(f"--site: {flags.site!r}; expected one of {', '.join(instrument.sites)}")
    for name in ("batches", "steps"):
        if (count := vars(flags)[name]) is not None and count < 1:
            raise UserError(f"--{name}: {count}; expected at least 1")
    check_picture("--picture", flags.picture)


MISSING = {
    "prompt": "such as --prompt='def f(x):'",
    "against": "a second text, of as many tokens as --prompt",
}
"""A flag that an instrument needs -> an example of it."""
