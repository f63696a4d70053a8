"""Formats of tokenizers other than tokenizer.json, and the commands that convert them."""

import re
from pathlib import Path

SAMPLE = 1 << 12
"""Bytes at the beginning of a file by which its format is known."""

PYTHON = (
    'python -c "from pathlib import Path; from transformer.interop.{module} import {read}; '
    "{read}(Path('{file}')).save('{file}.json')\""
)
TIKTOKEN = (
    'python -c "from transformers.integrations.tiktoken import convert_tiktoken_to_fast; '
    "convert_tiktoken_to_fast('{name}', '{file}.converted')\""
)


def other_format(path: Path) -> str:
    """The format of the file and how to convert it, if it is another known format of a tokenizer; else ""."""
    try:
        with path.open("rb") as file:
            head = file.read(SAMPLE)
    except OSError:
        return ""
    if re.match(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n", head):
        name = path.stem if path.suffix == ".tiktoken" else "NAME"
        lacks = "which has neither the pattern that splits a text nor the special tokens"
        command = TIKTOKEN.format(name=name, file=path)
        return (
            f"a file of tiktoken, {lacks}; give the tokenizer.json of its model, or convert it: `{command}`"
        )
    if head[:1] == b"\n" and path.suffix != ".json":  # the first field of a message of protocol buffers
        return _convert("a SentencePiece model", path, "sentencepiece", "read_sentencepiece")
    if path.suffix == ".txt" and b"\n[UNK]" in head.replace(b"\r", b""):
        return _convert("a vocabulary of WordPiece", path, "wordpiece", "word_piece")
    return ""


def _convert(problem: str, path: Path, module: str, read: str) -> str:
    return f"{problem}; convert it: `{PYTHON.format(module=module, read=read, file=path)}`"
