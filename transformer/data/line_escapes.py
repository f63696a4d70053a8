"""Texts of several lines written in one, and back."""

import re

WRITTEN = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    """The text in one line, in which \\n, \\r, \\t and \\\\ are a line break, a carriage return, a tab and a
    backslash."""
    return re.sub(r"[\\\n\r\t]", lambda found: WRITTEN[found[0]], text)


def unescape(line: str) -> str:
    """The text that `escape` made a line of; other backslashes stay what they are."""
    read = {written: character for character, written in WRITTEN.items()}
    return re.sub(r"\\[nrt\\]", lambda found: read[found[0]], line)
