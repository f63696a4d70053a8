"""Packed files, and files that are not UTF-8 text."""

import contextlib
import importlib
import mmap
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from transformer.errors import UserError, first_line

PACKED = {
    ".gz": ("gzip", "gunzip -k"),
    ".bz2": ("bz2", "bunzip2 -k"),
    ".xz": ("lzma", "unxz -k"),
    ".lzma": ("lzma", "unlzma -k"),
    ".zst": ("compression.zstd", "unzstd"),
    ".zip": ("zipfile", "unzip"),
}
"""Suffixes of packed files, with the module that reads them and the command that unpacks them."""

SAMPLE = 1 << 13
"""Bytes at the beginning of a file in which what is not text is looked for, as in Git."""

SIGNATURES = (
    (0, b"PK\x03\x04", "a zip archive", "unzip {}"),
    (0, b"\x1f\x8b", "packed with gzip", "mv {0} {0}.gz"),
    (0, b"BZh", "packed with bzip2", "mv {0} {0}.bz2"),
    (0, b"\xfd7zXZ\0", "packed with xz", "mv {0} {0}.xz"),
    (0, b"\x28\xb5\x2f\xfd", "packed with zstd", "mv {0} {0}.zst"),
    (257, b"ustar", "a tar archive", "tar xf {}"),
    (0, b"%PDF-", "a PDF", "pdftotext {}"),
    (0, b"PAR1", "a Parquet file", "source parquet:{}"),
    (0, b"\xff\xfe\0\0", "UTF-32", "iconv -f UTF-32 -t UTF-8 {0} > {0}.utf8"),
    (0, b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8 {0} > {0}.utf8"),
    (0, b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8 {0} > {0}.utf8"),
)
"""The place and the bytes by which a file is known, what it is, and what to do."""

WINDOWS = "a text of Windows is converted by `iconv -f CP1252 -t UTF-8 {0} > {0}.utf8`"
"""The hint for a text that is not UTF-8."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Any]:
    """Opens a packed file to read what was packed.

    Raises:
      UserError: it is damaged, an archive of several files, or packed by what this Python cannot read.
    """
    module, command = PACKED[path.suffix.lower()]
    unpack = f"unpack it, `{command} {shlex.quote(str(path))}`"
    try:
        library = importlib.import_module(module)
    except ImportError:
        raise UserError(f"{path}: this Python has no module {module} to read it; {unpack}") from None
    try:
        with _only_member(path, library, unpack) if module == "zipfile" else library.open(path) as stream:
            yield stream
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, UnicodeError) or getattr(error, "errno", None):  # of its reader, or of the disk
            raise
        kind = module.rpartition(".")[2].removesuffix("file")
        raise UserError(f"{path}: not a whole {kind} file ({first_line(error)})") from None


@contextlib.contextmanager
def _only_member(path: Path, library: Any, unpack: str) -> Iterator[BinaryIO]:
    with library.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise UserError(f"{path}: an archive of {len(members):,} files; expected one: {unpack}")
        with archive.open(members[0]) as stream:
            yield stream


def refuse_binary(data: bytes | mmap.mmap, path: Path) -> None:
    """Refuses a file that starts with these bytes if it is an archive, an image of memory, or text of
    UTF-16.

    Raises:
      UserError: it is; the message has the command that converts it.
    """
    name, head = shlex.quote(str(path)), data[:SAMPLE]
    for place, signature, kind, remedy in SIGNATURES:
        if head[place : place + len(signature)] == signature:
            raise UserError(f"{path}: {kind}, not UTF-8 text; `{remedy.format(name)}`")
    if b"\0" in head:
        even, odd = head[::2].count(0), head[1::2].count(0)
        kind = "UTF-16LE" if odd > 9 * even else "UTF-16BE" if even > 9 * odd else ""
        of_text = f"if it is {kind} text, `iconv -f {kind} -t UTF-8 {name} > {name}.utf8`"
        remedy = of_text if kind and even + odd > 1 else f"`tr -d '\\0' < {name} > {name}.txt` drops them"
        problem = f"byte {head.index(0)} is NUL, which text does not have"
        raise UserError(f"{path}: not UTF-8 text: {problem}; {remedy}")
