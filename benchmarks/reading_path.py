"""The code on two walks, from flags to a gradient and from a prompt to a token, as a table of files.

    python -m benchmarks.reading_path [--config=configs/lm.py:tiny] [--whole] [--functions]

Trains in this process, completes a prompt with the trained model, both under `sys.setprofile`, and counts the
lines of all functions of this repository that were called, without blank lines, comments, docstrings and
inner functions that were not called. The training is followed from the flags to its first gradient, that is
until the train step has been traced once; with `--whole` to its end, with evaluations, checkpoints, samples,
plots and the report. The completion is followed from the flags to the text. Caches of prepared data start
empty, so that the figures do not depend on earlier runs. Code that runs on import (definitions, tables) and
config files are not counted as called.

The columns are the lines called on each walk, and the lines of code of the file. The share of a walk is the
lines called over the lines of code of the files that it enters.
"""

import argparse
import ast
import contextlib
import functools
import io
import os
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("commands", "experiments", "transformer", "workdir")
STEP = ("transformer/training/step.py", "make_train_step.<locals>.train_step")
"""The function whose first return is the first gradient."""


def traced(arguments: list[str], whole: bool) -> set[CodeType]:
    """The functions of this repository that a command calls, in any thread; in training only up to the first
    gradient, unless `whole`."""
    import jax

    import launch

    seen: set[CodeType] = set()
    following = True

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal following
        if not following:
            return
        if event == "call":
            seen.add(frame.f_code)
        elif event == "return" and not whole:
            file, function = STEP
            following = frame.f_code.co_qualname != function or not frame.f_code.co_filename.endswith(file)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        jax.clear_caches()  # trace again what an earlier command compiled
        if launch.main(arguments):
            raise SystemExit(f"the command failed: {' '.join(arguments)}")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return {code for code in list(seen) if is_own(code)}  # another thread may still be adding its last call


def is_own(code: CodeType) -> bool:
    """Whether this is the code of a function of the repository, not the body of a module or class."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or not code.co_flags & 0x2:  # CO_NEWLOCALS: set for functions only
        return False
    first = path.relative_to(ROOT).parts[0]
    return first in FOLDERS or first == "launch.py"


@functools.cache
def code_lines(path: str) -> tuple[frozenset[int], dict[int, tuple[int, int]]]:
    """The line numbers of a file that hold code, and for each function {first line of its code object, which
    may be a decorator's: (first line, last line)}."""
    source = Path(path).read_text()
    tree = ast.parse(source)
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    skipped |= {tokenize.ENCODING, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    spans = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", [])
            spans[min([node.lineno, *(each.lineno for each in decorators)])] = (node.lineno, node.end_lineno)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, docstring.end_lineno + 1))  # type: ignore[operator]
    return frozenset(lines), spans  # type: ignore[return-value]


def count(codes: set[CodeType]) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Lines by file, and by file and function."""
    own: dict[str, dict[int, str]] = {}
    for path in {code.co_filename for code in codes}:
        lines, spans = code_lines(path)
        called = {code.co_firstlineno: code.co_qualname for code in codes if code.co_filename == path}
        belongs: dict[int, str] = {}
        for begin, (first, last) in sorted(spans.items()):  # inner functions after the outer ones
            inside = range(first, last + 1)  # type: ignore[operator]
            for line in inside:
                if begin in called and line in lines:
                    belongs[line] = called[begin]
                elif first != last or line not in belongs:
                    belongs.pop(line, None)
        own[path] = belongs
    files, functions = Counter(), Counter()
    for path, belongs in own.items():
        name = str(Path(path).relative_to(ROOT))
        files[name] = len(belongs)
        functions.update((name, function) for function in belongs.values())
    return files, functions


def main() -> None:
    """Parses flags, runs the commands, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/lm.py:tiny")
    parser.add_argument("--whole", action="store_true", help="follow the training to its end")
    parser.add_argument("--functions", action="store_true", help="a row for each function too")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"  # prepare the data again
        workdir = f"--workdir={folder}/run"
        training = traced([f"--config={flags.config}", workdir], flags.whole)
        completion = [workdir, "--mode=predict", "--prompt=def f"]
        with contextlib.redirect_stdout(io.StringIO()):
            walks = {"flags to gradient": training, "prompt to token": traced(completion, flags.whole)}
    walks["both"] = set.union(*walks.values())
    files, functions = zip(*map(count, walks.values()), strict=True)
    code = {name: len(code_lines(str(ROOT / name))[0]) for name in files[-1]}
    print("|", " | ".join(["file", *walks, "code"]), "|")
    print("|---" * (len(walks) + 2) + "|")
    for name, _ in files[-1].most_common():
        print("|", " | ".join([name, *(str(walk[name]) for walk in files), str(code[name])]), "|")
        if flags.functions:
            rows = {
                function: [walk[name, function] for walk in functions]
                for path, function in functions[-1]
                if path == name
            }
            for function, lines in sorted(rows.items(), key=lambda row: -row[1][-1]):
                print("|    ", " | ".join([function, *map(str, lines)]), "| |")
    for name, walk in zip(walks, files, strict=True):
        share = walk.total() / sum(code[file] for file in walk)
        print(f"{name}: {len(walk)} files, {walk.total():,} lines, {share:.0%} of their code")


if __name__ == "__main__":
    main()
