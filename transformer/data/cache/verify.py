"""Compares prepared data with the checksums that they were made with.

    python -m transformer.data.cache.verify [FOLDER] [--delete]

FOLDER is a `data.cache_dir` (default: the user's cache). Prints the folders of prepared data in which a file
has changed, and with --delete deletes them: the next command that needs them makes them again. Ends with exit
code 1 if one has changed and is still there.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from transformer.data.cache.disk_cache import CHECKSUMS, damage, data_folder, file_digest, read_sums

DIGITS = 20
"""Hexadecimal digits of a `file_digest`; checksums of an earlier version have a multiple of 8."""


def damaged(folder: Path) -> Iterator[tuple[Path, str]]:
    """The folders below `folder` of which a file is not as it was made, and which file. Of folders that an
    earlier version made only sizes are compared."""
    for path in sorted(file.parent for file in folder.glob(f"*/*/{CHECKSUMS}")):
        if problem := damage(path) or _changed(path):
            yield path, problem


def _changed(path: Path) -> str:
    for name, (_, *checksums) in read_sums(path).items():
        if checksums and len(checksums[0]) == DIGITS and file_digest(path / name) != checksums[0]:
            return f"{name} has changed"
    return ""


def main(arguments: list[str]) -> int:
    """Parses flags, prints damaged folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", default="")
    parser.add_argument("--delete", action="store_true")
    flags = parser.parse_args(arguments)
    count = 0
    for path, problem in damaged(data_folder(flags.folder)):
        print(f"{path}: {problem}" + ("; deleted" if flags.delete else ""))
        if flags.delete:
            shutil.rmtree(path)
        count += 1
    return int(count > 0 and not flags.delete)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
