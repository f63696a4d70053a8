"""The help of a command, as wide as the terminal."""

import argparse
import functools
import shutil
import textwrap

WIDEST = 110
"""The widest page, in columns, and the width where the output is not a terminal."""


def terminal_width(otherwise: int) -> int:
    """The columns of the terminal, or `otherwise` where the output goes elsewhere."""
    return shutil.get_terminal_size((otherwise, 24)).columns or otherwise


def show(parser: argparse.ArgumentParser, page: str) -> None:
    """Prints the docstring `page` of a command and its flags."""
    width = min(terminal_width(WIDEST), WIDEST)
    parser.usage = "python launch.py [--mode=NAME] [--FLAG=VALUE] [--config.KEY=VALUE]"
    parser.formatter_class = functools.partial(
        argparse.RawDescriptionHelpFormatter, max_help_position=min(32, width // 3), width=width
    )
    parser.description = "\n\n".join(fold(paragraph, width) for paragraph in page.strip().split("\n\n"))
    parser.print_help()


def fold(paragraph: str, width: int) -> str:
    """A paragraph in lines of at most `width` columns. Prose is filled; a command that is too long
    stands below its meaning, in lines that a shell reads as one."""
    lines = paragraph.splitlines()
    if all(len(line) <= width for line in lines):
        return paragraph
    if not any("python " in line for line in lines):
        return textwrap.fill(" ".join(lines), width)
    return "\n".join(line if len(line) <= width else _in_lines(line, width) for line in lines)


def _in_lines(line: str, width: int) -> str:
    """A command, perhaps after its meaning, in lines that a shell reads as one."""
    meaning, _, command = line.rpartition("python ")
    indent = "    " if meaning.strip() else ""
    lines: list[str] = []
    for argument in ("python " + command).split(" --"):
        longer = f"{lines[-1]} --{argument}" if lines else indent + argument
        if lines and len(longer) <= width - 2:
            lines[-1] = longer
        else:
            lines.append(f"{indent}    --{argument}" if lines else longer)
    return "\n".join(filter(None, [meaning.rstrip(), " \\\n".join(lines)]))
