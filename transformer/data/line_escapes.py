"""Escapes that write a text of several lines in one."""

import re

WRITTEN = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    """The text with line breaks, carriage returns, tabs and backslashes as \\n, \\r, \\t and \\\\."""
    return re.sub(r"[\\\n\r\t]", lambda found: WRITTEN[found[0]], text)


def unescape(line: str) -> str:
    """The inverse of `escape`; other backslashes are kept."""
    read = {written: character for character, written in WRITTEN.items()}
    return re.sub(r"\\[nrt\\]", lambda found: read[found[0]], line)
