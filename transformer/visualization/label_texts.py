"""Texts of the user in pictures and in Markdown: labels of classes, tokens, words, values of keys."""

import functools
import re
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from transformer.errors import brief

BOXES = "Last Resort"
"""The beginning of the name of a font that has a box for every character."""

MAX_LABEL_CHARACTERS = 24
"""Characters of the longest label beside a cell or a point: a longer one takes the room of the picture."""


def shortened(label: str) -> str:
    """A label of at most `MAX_LABEL_CHARACTERS` characters: of a longer one its beginning and its end."""
    return brief(label, MAX_LABEL_CHARACTERS, end=MAX_LABEL_CHARACTERS // 3)


def in_markdown(text: str) -> str:
    """A text in one line of Markdown that is shown as it is, also in a cell of a table."""
    return re.sub(r"[\\`*\[\]<>|#&~$]|\b_|_\b", r"\\\g<0>", " ".join(text.split()))


def without_formulas(texts: Iterable[Any]) -> None:
    """Draws Matplotlib's `texts` as they are, each in its `fonts_of`: a dollar sign starts no formula."""
    for text in texts:
        text.set_parse_math(False)
        text.set_fontfamily(fonts_of(text.get_text()))


def fonts_of(text: str) -> list[str]:
    """The default fonts, and installed ones for the characters that these lack, such as Chinese. If some are
    in none, which are drawn as boxes, a line says so once."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    names = [*rcParams["font.family"]]
    lacking = {*map(ord, text)}.difference(_characters(findfont(FontProperties(family=names))))
    lacking = {code for code in lacking if chr(code).isprintable() and not chr(code).isspace()}
    installed = [font for font in fontManager.ttflist if lacking and not font.name.startswith(BOXES)]
    while lacking:
        have = [_characters(font.fname) for font in installed]
        best = max(range(len(have)), key=lambda i: (len(lacking & have[i]), len(have[i])))
        if not lacking & have[best]:
            _note()
            break
        names.append(installed[best].name)
        lacking -= have[best]
    return names


@functools.cache
def _characters(font: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(font).get_charmap())
    except RuntimeError:  # a format that Matplotlib cannot draw
        return frozenset()


@functools.cache
def _note() -> None:
    warnings.filterwarnings("ignore", message="Glyph .* missing from ")  # Matplotlib's, of each character
    print("boxes in pictures are characters that no font here has: install one that does", file=sys.stderr)
