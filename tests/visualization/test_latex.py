"""Tables in LaTeX, read back by the rules of TeX."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer.errors import printable
from transformer.visualization.latex import in_latex, tabular

COMMANDS = {"backslash": "\\", "asciitilde": "~", "asciicircum": "^", "less": "<", "greater": ">", "bar": "|"}

PART = re.compile(
    r"\\([&%$#_{}])|\\text([a-z]+)\{\}|\{([^\\{}&%$#_^~])\}"
    r"|\$([+-]?[0-9.]+)(?: \\times 10\^\{(-?)([0-9]+)\})?\$|([^\\{}&%$#_^~<>|])"
)
"""An escaped character, a command, a character in braces, a number, or a character that means itself."""

LIGATURES = ("--", "``", "''", ",,", "!`", "?`")
"""Of each of these LaTeX makes one character."""


def printed(latex: str) -> str:
    """What TeX prints; numbers with two digits of their power, as Python."""
    parts, end = [], 0
    while end < len(latex):
        part = PART.match(latex, end)
        assert part, f"{latex[end:]!r} is not text of LaTeX"
        character, command, braced, number, sign, power, plain = part.groups()
        exponent = f"e{sign or '+'}{power:0>2}" if power else ""
        parts.append(
            character or braced or plain or (COMMANDS[command] if command else f"{number}{exponent}")
        )
        end = part.end()
    return "".join(parts)


odd = st.text() | st.text(alphabet=list("\\{}$&#^_%~ a1.-`'\",!?[*<>|\n\x1b"))


@settings(max_examples=300, deadline=None)
@given(text=odd | st.floats(allow_nan=False).map(str))
@example("\\end{tabular}")
@example("[1, 2]")
@example("*, name_of 100 % & more")
@example("1e-05 -0.5 <unk> -- d|e")
def test_any_text_is_printed_as_it_is(text):
    latex = in_latex(text)
    assert printed(latex) == " ".join(printable(text).split())
    assert not latex.startswith(("[", "*")), "it would be an option of the end of the line before"
    assert not any(pair in latex for pair in LIGATURES)


def test_numbers_have_minus_signs_and_powers():
    assert in_latex("-0.0288 to +0.02") == "$-0.0288$ to $+0.02$"
    assert in_latex("1e-05") == r"$1 \times 10^{-5}$" and in_latex("2.5e+16") == r"$2.5 \times 10^{16}$"


@pytest.mark.parametrize("first", ["wide_1", "[2, 4]"])
def test_a_table(first):
    assert tabular([["a|b", "eval/loss"], [first, "-1.5"], ["", "diverged"]]).splitlines() == [
        r"% \usepackage{booktabs}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a\textbar{}b & eval/loss \\",
        r"\midrule",
        {"wide_1": r"wide\_1 & $-1.5$ \\", "[2, 4]": r"{[}2, 4] & $-1.5$ \\"}[first],
        r" & diverged \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
