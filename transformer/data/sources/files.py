"""Files of the user: plain text, and the base class of other formats."""

import bisect
import functools
import glob
import mmap
import os
import re
import shlex
import shutil
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.data.cache.content_digests import contents_of
from transformer.data.cache.disk_cache import build_once, digest
from transformer.data.sources.base import PIECE, SPLITS, Source, falls_in
from transformer.data.sources.options import PLACE, Options
from transformer.data.sources.packed_files import PACKED, WINDOWS, reading, refuse_binary
from transformer.data.sources.record_splits import MIN_HASHED_RECORDS, belong, shares
from transformer.errors import UserError

DOCUMENTS = {"file": None, "line": re.compile(rb"\n"), "paragraph": re.compile(rb"\n(?:[ \t\r]*\n)+")}
"""Kinds of documents of plain text, by their delimiters. Documents include the delimiter, so that every byte
of the file is counted."""


class Files(Source):
    """Records that are ranges of bytes in files, plain or packed."""

    is_files = True
    version = 0
    """To be raised when the same files give other records than before: what is cached of records, where they
    are and what is tokenised, is then made again."""

    def __init__(
        self, kind: str, pattern: str, split: str, options: Options, patterns: Sequence[str] = ()
    ) -> None:
        """`patterns` are the parts of `pattern`, if it has several."""
        self.name = f"{kind}:{pattern} ({split})"
        self.field = options.field
        self._split = split
        self._options = options
        self._files = [file for part in patterns or [pattern] for file in _find(kind, part)]
        stats = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in self._files]
        more = [options.rule] if self.by_key(options) else []
        more += [["optional", *options.optional]] if options.optional else []
        more += [["version", str(self.version)]] if self.version else []
        self.identity = digest(kind, stats, split, options.field, options.document, options.divide, *more)
        self._stats = stats
        self._map = functools.lru_cache(64)(self._open)
        self._line_ends = functools.lru_cache(64)(self._find_line_ends)

    @staticmethod
    def by_key(options: Options) -> bool:
        """Whether records are split by their content (`Options.rule`)."""
        return options.divide

    @property
    def content(self) -> dict[str, Any]:
        """Every file with its size and digest, independent of the folder."""
        return contents_of(self._files, self._options.folder)

    def _open(self, file: int) -> mmap.mmap:
        path = self._plain(file)
        try:
            with open(path, "rb") as opened:
                data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        refuse_binary(data, self._files[file])
        return data

    def _plain(self, file: int) -> Path:
        path = self._files[file]
        return _unpacked(path, self._options.folder) if path.suffix.lower() in PACKED else path

    @functools.cached_property
    def _sizes(self) -> list[int]:
        return [self._size(file) for file in range(len(self._files))]

    def _size(self, file: int) -> int:
        return self._plain(file).stat().st_size

    def _begin(self, file: int) -> int:
        """The position where the text of a file starts: after a byte-order mark, if there is one."""
        return len(BOM_UTF8) if self._sizes[file] and self._map(file)[: len(BOM_UTF8)] == BOM_UTF8 else 0

    def _decode(self, file: int, start: int, end: int) -> str:
        data = self._map(file)
        if data.size() < end:  # to read beyond its end would end the process
            raise UserError(
                f"{self._files[file]}: it has become shorter than {end:,} bytes while it was read"
            )
        try:
            return data[start:end].decode()
        except UnicodeDecodeError as error:
            at = start + error.start
            problem = f"{self._place(file, at)}: byte {at} is not UTF-8 ({error.reason})"
            remedy = WINDOWS.format(shlex.quote(str(self._files[file])))
            raise UserError(f"{problem}; {remedy}") from None

    def _place(self, file: int, position: int) -> str:
        return f"{self._files[file]}:{1 + np.searchsorted(self._line_ends(file), position, side='right')}"

    def _find_line_ends(self, file: int) -> np.ndarray:
        """Where the lines of a file end, each after its line feed."""
        size = self._sizes[file]
        data = np.frombuffer(self._map(file) if size else b"", np.uint8)
        blocks = range(0, size, PIECE)
        parts = [start + 1 + np.flatnonzero(data[start : start + PIECE] == ord("\n")) for start in blocks]
        ends = np.concatenate([np.zeros(0, np.int64), *parts])
        return ends if not size or data[-1] == ord("\n") else np.append(ends, size)


class TextFiles(Files):
    """Plain UTF-8 text, `text:GLOB`, whose documents are files, lines or paragraphs.

    Equal lines or paragraphs are in one split (see `belong`). `MIN_HASHED_RECORDS` files or more are split by
    a hash of their names; fewer are concatenated in the order of their names and split by position, 90/5/5,
    at ends of lines. With `split_by` `PLACE` lines and paragraphs are split as files are.

    Raises:
      UserError: an unknown kind of document; several fields; no such file, no text in it, or (when read)
        text that is not UTF-8.
    """

    divided_by = PLACE

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        if options.document not in DOCUMENTS:
            expected = ", ".join(DOCUMENTS)
            raise UserError(f"text:{pattern}: document {options.document!r}; expected one of {expected}")
        if len(options.asked) > 1:
            fields = ", ".join(map(repr, options.asked))
            raise UserError(f"text:{pattern}: plain text has no fields, and {fields} are read; give jsonl:")
        super().__init__("text", pattern, split, options)
        self.identity = digest(self.identity, "without byte-order marks")

    @staticmethod
    def by_key(options: Options) -> bool:
        """Whether documents are split by their content."""
        return options.divide and options.document != "file" and not options.by_place

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        file, start, end = self._range(self._numbers[index])
        return {self.field: self._decode(file, start, end), "file": str(self._files[file])}

    def place(self, index: int) -> str:
        """The file of a document and its first line."""
        file, start, _ = self._range(self._numbers[index])
        return self._place(file, start)

    def pieces(self, index: int) -> Iterator[str]:
        """The text of one document in pieces; a document may be larger than memory."""
        file, start, end = self._range(self._numbers[index])
        while start < end:
            cut = _boundary(self._map(file), start + PIECE, end)
            yield self._decode(file, start, cut)
            start = cut

    @functools.cached_property
    def _numbers(self) -> Sequence[int]:
        """The documents of the split, by their numbers among those of all parts."""
        ends = self._ends
        if not self.by_key(self._options):
            return range(len(ends))
        of_part = np.split(ends, self._firsts[1:])
        keys = (
            key
            for (file, start, _), ends_n in zip(self._parts, of_part, strict=True)
            for key in stripped(self._map(file), start or self._begin(file), ends_n)
        )
        return np.flatnonzero(belong(self._split, shares(keys))).tolist()

    def _range(self, index: int) -> tuple[int, int, int]:
        ends, firsts = self._ends, self._firsts
        number = bisect.bisect(firsts, index) - 1
        file, start, _ = self._parts[number]
        begin = start or self._begin(file)
        return file, int(ends[index - 1]) if index > firsts[number] else begin, int(ends[index])

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """The ends of documents, part by part; nothing else of a document is in memory."""
        pattern = DOCUMENTS[self._options.document]
        ends = array("q")
        self._firsts = []  # the first document of each part
        for file, start, end in self._parts:
            self._firsts.append(len(ends))
            if pattern:
                ends.extend(match.end() for match in pattern.finditer(self._map(file), start, end))
            if len(ends) == self._firsts[-1] or ends[-1] < end:
                ends.append(end)
        return np.frombuffer(ends, np.int64) if ends else np.empty(0, np.int64)

    @functools.cached_property
    def _parts(self) -> list[tuple[int, int, int]]:
        """The non-empty parts (file, start, end) of the split."""
        parts = [(file, 0, size) for file, size in enumerate(self._sizes)]
        if self.by_key(self._options):
            pass  # all of them: the documents are divided
        elif self._options.divide and len(parts) >= MIN_HASHED_RECORDS:
            common = os.path.commonpath(self._files)
            names = [os.path.relpath(file, common) for file in self._files]
            parts = [part for part in parts if falls_in(self._split, os.fsencode(names[part[0]]))]
        elif self._options.divide:
            low, high = SPLITS[self._split]
            first, last = self._at(low), self._at(high)
            parts = [
                (file, first[1] if file == first[0] else 0, last[1] if file == last[0] else size)
                for file, _, size in parts[first[0] : last[0] + 1]
            ]
        return [part for part in parts if part[1] < part[2]]

    def _at(self, portion: float) -> tuple[int, int]:
        """The file and the position in it where this portion of all bytes ends, at the next end of a line."""
        position = int(portion * sum(self._sizes))
        for file, size in enumerate(self._sizes):
            if position < size:
                return file, _boundary(self._map(file), position, size) if position else 0
            position -= size
        return len(self._sizes) - 1, self._sizes[-1]


def matching(pattern: str) -> list[Path]:
    """The path with this name or, if there is none, those that match it: its longest beginning that exists is
    a path, and the rest a pattern."""
    path = Path(os.path.expanduser(pattern))
    there = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    parts = path.relative_to(there).parts
    names = glob.glob(os.path.join(glob.escape(str(there)), *parts), recursive=True) if pattern else []
    return [Path(name) for name in sorted(names)]


def _find(kind: str, pattern: str) -> list[Path]:
    paths = matching(pattern)
    by_inode: dict[tuple[int, ...], Path] = {}  # by device and number: each file once, whatever links to it
    for path in filter(Path.is_file, paths):
        by_inode.setdefault(os.stat(path)[1:3], path.absolute())
    files = [*by_inode.values()]
    if broken := [path for path in paths if path.is_symlink() and not path.exists()]:
        raise UserError(
            f"{kind}:{pattern}: {broken[0]} is a link to {os.readlink(broken[0])}, which is not there"
        )
    if not files:
        hint = "neither a file nor a folder; a pipe or a device is read only once, save its text to a file"
        if not paths or paths[0].is_dir():
            hint = f"is a folder; name its files, {kind}:{pattern.rstrip('/')}/*" if paths else "no such file"
        raise UserError(f"{kind}:{pattern}: {hint}")
    for file in files:
        if not os.access(file, os.R_OK):
            raise UserError(f"{kind}:{pattern}: {file} cannot be read (permission denied)")
    if not any(file.stat().st_size for file in files):
        raise UserError(f"{kind}:{pattern}: {'the file is' if len(files) == 1 else 'the files are'} empty")
    return files


def stripped(data: mmap.mmap, start: int, ends_n: np.ndarray) -> Iterator[bytes]:
    """The texts between successive ends, from `start`, without white space around them."""
    for end in ends_n.tolist():
        yield data[start:end].strip()
        start = end


def _boundary(data: mmap.mmap, position: int, end: int) -> int:
    """The end of the line at `position`, or of the character if the line is too long."""
    if position >= end:
        return end
    newline = data.find(b"\n", position, min(end, position + PIECE))
    if newline >= 0:
        return newline + 1
    position = min(end, position + PIECE)
    while position < end and data[position] & 0xC0 == 0x80:
        position += 1
    return position


def _unpacked(path: Path, folder: Path) -> Path:
    stat = path.stat()

    def build(new: Path) -> None:
        with reading(path) as packed, open(new / "text", "wb") as plain:
            shutil.copyfileobj(packed, plain, PIECE)

    return build_once(folder / "unpacked" / digest(str(path), stat.st_size, stat.st_mtime_ns), build) / "text"
