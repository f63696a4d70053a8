"""Tables in LaTeX, in the style of the package booktabs."""

import re
from collections.abc import Sequence

from transformer.errors import printable

ESCAPES = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},  # other characters in old fonts
    **{c: f"{{{c}}}" for c in "[*"},  # options of the end of the line before
    "`": "{`}",  # with a ? or ! before it LaTeX prints another character
}
"""Characters that mean something in a text of LaTeX, and the commands that print them."""

NUMBER = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)(?:e([+-]?)0*([0-9]+))?")


def in_latex(text: str) -> str:
    """A text in one line of LaTeX that is printed as it is. Numbers are in math mode, for minus signs and
    powers of 10."""
    return " ".join(map(_word, printable(text).split()))


def _word(word: str) -> str:
    if not (number := NUMBER.fullmatch(word)):
        escaped = "".join(ESCAPES.get(c, c) for c in word)
        return re.sub(r"(?<=([-',]))\1", r"{\g<0>}", escaped)  # -- would be a dash
    value, sign, power = number.groups()
    return f"${value} \\times 10^{{{sign.strip('+')}{power}}}$" if power else f"${value}$"


def tabular(table: Sequence[Sequence[str]]) -> str:
    """A table as a `tabular`, whose first line is the heading. Columns with a number are aligned right."""
    columns = zip(*table[1:], strict=True)
    alignment = "".join("r" if any(map(NUMBER.fullmatch, column)) else "l" for column in columns)
    heading, *rows = (f"{' & '.join(map(in_latex, line))} \\\\\n" for line in table)
    return (
        f"% \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{heading}\\midrule\n"
        f"{''.join(rows)}\\bottomrule\n\\end{{tabular}}\n"
    )
