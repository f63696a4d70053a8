"""Prints a whole config, one key per line, with the default of each key that differs from it.

python launch.py --mode=config --config=configs/lm.py --config.model.num_layers=4
python launch.py --mode=config --workdir=runs/lm
"""

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

from commands import place
from commands.support.help_page import terminal_width

if TYPE_CHECKING:
    from transformer.config_help import Key
    from workdir.opening import Overrides

WIDTH = 36
"""The column of comments."""

BELOW = " " * 6 + "# "
"""The beginning of a meaning that stands below its key, where both are wider than the terminal."""


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.add_argument(
        "--config", type=place, default="", help="a config file; without one, the config of --workdir"
    )


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints `model.d_model = 192  # default: 256` for each key."""
    from workdir.facts import keys_of
    from workdir.folder import stored_config
    from workdir.opening import check_config, named, read_to_train

    folder = None if flags.config else named(flags.workdir)
    values = read_to_train(stored_config(folder) if folder else flags.config, overrides, folder)
    config = check_config(values, overrides)
    for key, value in keys_of(config):
        line = f"{key.name} = {value!r}"
        differs = value != key.default and key.name != "experiment"
        print(f"{line:{WIDTH}}  # default: {key.default!r}" if differs else line)
    return 0


def explain(config_file: str, overrides: "Overrides", every: bool = False) -> None:
    """Prints the first keys of a config file, or every one, with defaults, differing values and meanings."""
    from commands.support.first_keys import first_keys
    from workdir.facts import keys_of
    from workdir.opening import check_config, read_to_train

    config = check_config(read_to_train(config_file, overrides), overrides)
    lines = {key.name: _meaning(key, value) for key, value in keys_of(config)}
    form = "default (value here, if it differs)  # meaning"
    if every:
        print(f"\nkeys of {config_file}: {form}", *lines.values(), sep="\n")
        return
    print(f"\nfirst keys of {config_file}: {form}")
    for group, names in first_keys(lines).items():
        print(f"\n{group}:", *(lines[name] for name in names), sep="\n")
    print(f"\n--help=all shows all {len(lines)} keys.")


def _meaning(key: "Key", value: Any) -> str:
    width = terminal_width(otherwise=1 << 16)  # a line per key, for grep
    shown = f"  --config.{key.name}={key.default!r}" + (f" ({value!r})" if value != key.default else "")
    valid = "; ".join(filter(None, [key.bound, key.condition]))
    meaning = f"{key.meaning} [{valid}]" if valid else key.meaning
    line = f"{shown:{WIDTH + 16}}  # {meaning}"
    below = textwrap.fill(meaning, width, initial_indent=BELOW, subsequent_indent=BELOW)
    return line if len(line) <= width else f"{shown}\n{below}"
