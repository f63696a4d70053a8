"""What becomes of damaged files of data.

    python -m tests.faults.damaged_data [--trials 200] [--seed 0] [--kinds parquet "token cache"]

Files of each kind are damaged at random, as checkpoints are (`benchmarks.damaged_checkpoints`), and read
whole. A trial ends in a line (a `UserError` of one line), read (no error: plain text has no checksums) or a
traceback, which must not be. A token cache that is `made again` has the arrays that it had before.
"""

import argparse
import collections
import gzip
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.damaged_checkpoints import cut, delete, flip, zero
from tests.data.documents import Texts
from transformer.data.cache.token_cache import TokenCache
from transformer.data.images.image_sources import ImageFolder
from transformer.data.sources import open_source
from transformer.data.sources.options import Options
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.errors import UserError

TEXTS = [f"record {i}: naïve {i * i} 日本 " + "words and more words " * (i % 5) for i in range(300)]


def text_file(folder: Path) -> None:
    """Lines."""
    (folder / "data").write_text("\n".join(TEXTS), encoding="utf-8")


def packed(folder: Path) -> None:
    """The same in gzip."""
    (folder / "data.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))


def json_lines(folder: Path) -> None:
    """An object in a line."""
    (folder / "data").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), encoding="utf-8")


def columns(folder: Path) -> None:
    """A table with a header, for tsv and csv."""
    rows = [f"{i},{text}" for i, text in enumerate(TEXTS)]
    (folder / "data").write_text("\n".join(["number,text", *rows]), encoding="utf-8")


def questions(folder: Path) -> None:
    """SQuAD's JSON."""
    asked = [
        {
            "context": text,
            "qas": [{"question": "what?", "id": "1", "answers": [{"text": "record", "answer_start": 0}]}],
        }
        for text in TEXTS
    ]
    written = {"version": "1.1", "data": [{"title": "x", "paragraphs": asked}]}
    (folder / "data").write_text(json.dumps(written), encoding="utf-8")


def parquet(folder: Path) -> None:
    """Uncompressed, so that damage reaches the values."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": TEXTS})
    pyarrow.parquet.write_table(table, folder / "data", compression="NONE", row_group_size=100)


def arrow(folder: Path) -> None:
    """What `save_to_disk` writes."""
    import pyarrow

    table = pyarrow.table({"text": TEXTS})
    with pyarrow.ipc.new_stream(str(folder / "data.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=100)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def images(folder: Path) -> None:
    """PNG and JPEG."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number, name in enumerate(["a/0.png", "a/1.jpg", "b/0.png", "b/1.jpeg"]):
        (folder / name).parent.mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (24, 24, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name, ["PNG", "JPEG"][number % 2])


def tokenizer_file(folder: Path) -> None:
    """Of this library."""
    Tokenizer.train("bpe", TEXTS, 300).save(folder / "data")


def token_cache(folder: Path) -> None:
    """Of plain text, in bytes."""
    TokenCache.of(Texts(TEXTS), Tokenizer.train("bytes"), folder)


def read_source(kind: str, name: str = "/data", **options: Any) -> Callable[[Path, Path], str]:
    """Reads all texts of a source."""

    def read(folder: Path, cache: Path) -> str:
        source = open_source(f"{kind}:{folder}{name}", "train", cache_dir=cache, divide=False, **options)
        for index in range(len(source)):
            source.text(index)
        return "read"

    return read


def read_images(folder: Path, cache: Path) -> str:
    """Decodes all."""
    found = ImageFolder(str(folder), "train", Options(cache), "label")
    for index in range(len(found)):
        found[index]
    return "read"


def read_tokenizer(folder: Path, cache: Path) -> str:
    """Encodes a text."""
    Tokenizer.load(folder / "data").encode(TEXTS[0])
    return "read"


def read_cache(folder: Path, cache: Path) -> str:
    """Opens the cache, and compares all of it with what it should be."""
    found = TokenCache.of(Texts(TEXTS), made := Tokenizer.train("bytes"), folder)
    documents = [[made.bos_id, *text.encode(), made.eos_id] for text in TEXTS]
    expected = {
        "tokens": np.concatenate(documents),
        "num_bytes": np.concatenate([[0, *[1] * (len(each) - 2), 0] for each in documents]),
        "offsets": np.cumsum([0, *map(len, documents)]),
        "lost": np.zeros(2),
    }
    same = all(np.array_equal(getattr(found, name), array) for name, array in expected.items())
    return "made again" if same else "read"


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path, Path], str]]] = {
    "text": (text_file, read_source("text")),
    "text, gzip": (packed, read_source("text", "/data.gz")),
    "jsonl": (json_lines, read_source("jsonl")),
    "tsv": (columns, read_source("tsv", field="source")),
    "csv": (columns, read_source("csv")),
    "squad": (questions, read_source("squad", field="question")),
    "parquet": (parquet, read_source("parquet")),
    "hf": (arrow, read_source("hf", "")),
    "folder": (images, read_images),
    "tokenizer.json": (tokenizer_file, read_tokenizer),
    "token cache": (token_cache, read_cache),
}

DAMAGES = {"flip": flip, "cut": cut, "zero": zero, "delete": delete}


def outcome(read: Callable[[Path, Path], str], folder: Path, cache: Path) -> str:
    """How reading damaged files ends."""
    try:
        return read(folder, cache)
    except UserError as error:
        return "line" if str(error) and "\n" not in str(error) else f"lines: {error}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"


def damaged(kind: str, damage: str, trials: int, rng: random.Random) -> collections.Counter:
    """Outcome -> number of trials."""
    write, read = KINDS[kind]
    counts: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        whole.mkdir()
        write(whole)
        assert outcome(read, whole, Path(name) / "cache") in ("read", "made again")
        for trial in range(trials):
            folder = shutil.copytree(whole, Path(name) / str(trial))
            files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
            DAMAGES[damage](files, rng)
            counts[outcome(read, folder, Path(name) / "cache")] += 1
            shutil.rmtree(folder)
    return counts


def main() -> None:
    """Prints a line for each kind of data and damage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="which")
    flags = parser.parse_args()
    rng = random.Random(flags.seed)
    for kind in flags.kinds:
        for damage in DAMAGES:
            counts = damaged(kind, damage, flags.trials, rng)
            print(
                f"{kind}, {damage}:",
                *(f"{name}={count}" for name, count in sorted(counts.items())),
                flush=True,
            )


if __name__ == "__main__":
    main()
