"""Small runs for the tests of whole programs: a corpus, and launch.py inside this process or outside."""

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def write_corpus(folder: Path, documents: int = 60) -> str:
    """Files of random words, and the name of the source that they are."""
    words = ["alpha", "beta", "gamma", "delta", "épsilon", "\n", "zeta;", "(eta)"]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        text = " ".join(random.choices(words, k=random.randrange(20, 80)))
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return f"text:{folder}/*.txt"


def tiny(source: str, workdir: Path, *more: str) -> list[str]:
    """The arguments that train the smallest language model."""
    return ["--config=configs/lm.py:tiny", f"--config.data.source={source}", f"--workdir={workdir}", *more]


def start(arguments: list[str], **options) -> subprocess.Popen:
    """`python launch.py` with the arguments, as a user starts it, on one device."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT} | options
    return subprocess.Popen([sys.executable, "launch.py", *arguments], **options)


def listing(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {
        os.path.relpath(path, folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
