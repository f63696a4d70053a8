"""Profiler traces with kernels named by their modules, and without waiting threads."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

WAITING = ("ThreadpoolListener::", "end: ", "Wait for ", "ThunkExecutor::", "PythonRefManager::")
"""Prefixes of events that only say that a thread waits or that another event has ended."""


def start(directory: Path) -> None:
    """Starts the profiler without Python calls, which would slow it down and fill the trace."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(directory), profiler_options=options)


def stop(directory: Path) -> None:
    """Stops the profiler, and rewrites the newest trace in the folder."""
    jax.profiler.stop_trace()
    traces = sorted(directory.rglob("*.trace.json.gz"), key=lambda path: path.stat().st_mtime)
    if traces:
        rewrite(traces[-1])


def rewrite(path: Path) -> None:
    """Renames the kernels of a `*.trace.json.gz` by their modules, "block_0/attention/query dot_general
    (fusion.7)", from the program in the `*.xplane.pb` beside it; removes waiting events, and threads with no
    other."""
    program = path.with_name(path.name.replace(".trace.json.gz", ".xplane.pb"))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        trace: dict[str, Any] = json.load(file)
    events = [event for event in trace["traceEvents"] if not str(event.get("name", "")).startswith(WAITING)]
    busy = {(event["pid"], event.get("tid")) for event in events if event.get("ph") == "X"}
    processes = {pid for pid, _ in busy}
    trace["traceEvents"] = [
        event
        for event in events
        if event.get("ph") != "M"
        or ((event["pid"], event["tid"]) in busy if "tid" in event else event["pid"] in processes)
    ]
    ran = {str((event.get("args") or {}).get("hlo_module")) for event in events}
    names = module_names(program.read_bytes(), ran) if program.is_file() else {}
    for event in trace["traceEvents"]:
        known = event.get("args") or {}
        kernel = known.get("hlo_module"), known.get("hlo_op")
        if kernel in names:
            event["name"] = f"{readable(names[kernel])} ({kernel[1]})"
    part = path.with_name(path.name + ".part")
    with gzip.open(part, "wt", encoding="utf-8") as file:
        json.dump(trace, file)
    os.replace(part, path)


def readable(name: str) -> str:
    """A readable name of an operation from its path in JAX.

    "jit(train_step)/transpose(jvp(Decoder.hidden))/block_0/Block/attention/query/dot_general" is "backward
    Decoder.hidden/block_0/attention/query dot_general".
    """
    *parts, operation = re.sub(r"^jit\(\w+\)/", "", name).split("/")
    backward = any(part.startswith("transpose(") for part in parts)
    plain = [re.sub(r"^(?:\w+\()*([^()]*)\)*$", r"\1", part) for part in parts]
    shown: list[str] = []
    for part in plain:
        if part and part not in (*shown[-1:], "Block", "Block._sublayer", "closed_call", "checkpoint"):
            shown.append(part)
    return f"{'backward ' if backward else ''}{'/'.join(shown)} {operation}".replace("  ", " ").strip()


def module_names(xspace: bytes, programs: set[str]) -> dict[tuple[str, str], str]:
    """(program, operation) -> path of the operation in JAX, for the programs in a `*.xplane.pb`. The file has
    all programs of the process; of two with the same name, the one compiled last is used.

    The numbers are protobuf fields that lead from one message to the next: XSpace, XPlane, XEventMetadata,
    XStat, HloProto, HloModuleProto, HloComputationProto, HloInstructionProto.
    """
    latest: dict[str, tuple[int, bytes]] = {}
    for metadata in _inside(xspace, 1, 4, 2):
        title = re.fullmatch(r"(.*)\((\d+)\)", _text(metadata, 2).decode())  # jit_train_step(12)
        if title and title[1] in programs and int(title[2]) > latest.get(title[1], (-1, b""))[0]:
            latest[title[1]] = int(title[2]), metadata
    return {
        (program, _text(instruction, 1).decode()): path.decode()
        for program, (_, metadata) in latest.items()
        for instruction in _inside(metadata, 5, 6, 1, 3, 2)
        if (path := _text(instruction, 7, 2))
    }


def _text(message: bytes, *fields: int) -> bytes:
    """The first content of a nested field of a message; b"" if there is none."""
    return next(_inside(message, *fields), b"")


def _inside(message: bytes, *fields: int) -> Iterator[bytes]:
    """The contents of a nested field of a protobuf message."""
    if not fields:
        yield message
        return
    for number, content in _fields(message):
        if number == fields[0]:
            yield from _inside(content, *fields[1:])


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each length-delimited field: a string or another message."""
    place = 0
    while place < len(message):
        key, place = _integer(message, place)
        kind = key & 7
        if kind == 2:
            length, place = _integer(message, place)
            yield key >> 3, message[place : place + length]
            place += length
        elif kind == 0:
            _, place = _integer(message, place)
        else:
            place += {1: 8, 5: 4}[kind]


def _integer(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
