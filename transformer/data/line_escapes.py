"""Escapes that write a text of several lines in one."""

import re

WRITTEN = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    """The text with line breaks, carriage returns, tabs and backslashes as \\n, \\r, \\t and \\\\."""
    return re.sub(r"[\\\n\r\t]", lambda match: WRITTEN[match[0]], text)


def in_a_line(name: str) -> str:
    """A name with a space in place of tabs and of whatever breaks lines."""
    return re.sub(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+", " ", name)


def unescape(line: str) -> str:
    """The inverse of `escape`; other backslashes are kept."""
    read = {written: character for character, written in WRITTEN.items()}
    return re.sub(r"\\[nrt\\]", lambda match: read[match[0]], line)
