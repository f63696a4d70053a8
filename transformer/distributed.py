"""The processes of a run on several hosts: their connection, and their end."""

import atexit
import contextlib
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from transformer import coordinators
from transformer.errors import UserError

MEET_SECONDS = 300
"""Seconds that a process waits for all others to connect."""

SHUTDOWN_SECONDS = 30
"""Seconds that a process which ends with an error waits for the others, which then end too."""

LOOK_SECONDS = 10.0
"""Seconds to look for the process that has ended, where one can no longer be reached."""

LISTEN_SECONDS = 1.0
"""Seconds between two looks whether another process has announced its end."""

SAME_SECONDS = 5
"""Seconds that a process which a mistake or the user ends waits for the others to end in the same way."""

ENDS = "the process that ends all"
"""The key of JAX's coordination service under which the first one with an error announces its end."""

PLACES: list[tuple[str, str, int]] = []
"""The host, address and port of each process, where it listens for as long as it lives; port 0 where this
process cannot reach it, and so cannot say whether it has ended."""

ENDING = threading.Event()
"""Set once this process has come to its own end, and listens to the others no more."""


def connect(
    coordinator: str | None = None,
    count: int | None = None,
    number: int | None = None,
    heartbeat_seconds: int = 30,
    *,
    certain: bool = True,
    alone: str = "",
) -> None:
    """Connects to the other processes: what is not given, JAX reads from the scheduler's environment.

    The first one prints which are on which host. If one is silent for `heartbeat_seconds`, all end, with its
    number. Unless it is `certain` that there are others, none need be found. `alone` names a command of a
    single process.

    Raises:
      UserError: they do not meet, or the command is one of a single process.
    """
    import jax

    # That service would catch SIGTERM, which then ends nothing but training, where `loop` catches it.
    jax.config.update("jax_enable_preemption_service", False)
    late = threading.Timer(MEET_SECONDS, _give_up)
    late.daemon = True
    late.start()
    try:
        coordinator, count, number = coordinators.find_coordinator(coordinator, count, number)
        host = coordinators.check(coordinator, is_here=number == 0)
        jax.distributed.initialize(
            coordinator,
            count,
            number,
            initialization_timeout=MEET_SECONDS + SHUTDOWN_SECONDS,
            heartbeat_timeout_seconds=heartbeat_seconds,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        if certain or (count or 1) > 1:
            raise UserError(f"--coordinator: the processes did not meet: {error}") from error
        return
    finally:
        late.cancel()
    if jax.process_count() > 1:
        PLACES.extend(_reachable(_announced(host)))
        if jax.process_index() == 0:
            placed = " ".join(f"{i} on {host}" for i, (host, _, _) in enumerate(PLACES))
            print(f"{len(PLACES)} processes: {placed}", file=sys.stderr)
        if alone:
            raise UserError(f"--mode={alone}: a command of one process, and {len(PLACES)} are started")


def _give_up() -> None:
    """Ends this process with a line, before JAX would with a stack trace."""
    why = f"after {MEET_SECONDS} seconds not all have come; start each, with the same address"
    print(f"error: --coordinator: the processes did not meet: {why}", file=sys.stderr, flush=True)
    os._exit(2)


def _announced(coordinator: str = coordinators.ANYWHERE) -> list[tuple[str, str, int]]:
    """Makes this process listen, without ever answering: the system closes the port when it dies.

    Each gives the address from which it reaches the host of the coordinator. On that host itself this may be
    a loopback address, by which no other host finds it; then it is the one from which it reaches another."""
    listening = coordinators.listening()
    port = listening.getsockname()[1]
    listening.detach()  # it stays open until the process ends
    address = coordinators.address_towards(coordinator)
    elsewhere = [host for host in gather_texts(address) if not ipaddress.ip_address(host).is_loopback]
    if elsewhere and ipaddress.ip_address(address).is_loopback:
        address = coordinators.address_towards(elsewhere[0])
    rows = [text.split() for text in gather_texts(f"{socket.gethostname()} {address} {port}")]
    return [(row[0], row[1], int(row[2])) for row in rows]


def _reachable(places: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """The places, with port 0 where a process that has just announced itself seems to have ended, as behind a
    firewall that refuses connections."""
    with ThreadPoolExecutor(32) as pool:
        refused = pool.map(lambda place: _has_ended(*place), places)
        return [(*place[:2], 0 if no else place[2]) for place, no in zip(places, refused, strict=True)]


def ended_process() -> str:
    """The process that has ended, "process 1 on node2"; "" if none is found within `LOOK_SECONDS`."""
    deadline = time.monotonic() + LOOK_SECONDS
    while PLACES and time.monotonic() < deadline:
        for number, place in enumerate(PLACES):
            if _has_ended(*place):
                return _name(number)
        time.sleep(0.2)
    return ""


def _has_ended(host: str, address: str, port: int) -> bool:
    """Whether nothing listens there; a host that cannot be reached may still be at work."""
    if not port:
        return False
    try:
        socket.create_connection((address, port), timeout=2).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _name(number: int) -> str:
    return f"process {number} on {PLACES[number][0]}"


def announce_end(why: str, who: str = "") -> None:
    """Announces to the other processes that `who` (this one) has ended, unless an end is announced already.
    The first process then stays until all others have ended, for at most `SHUTDOWN_SECONDS`: with it the
    coordination service ends, and JAX aborts the others before they can say what happened."""
    import jax

    ENDING.set()
    number, deadline = jax.process_index(), time.monotonic() + SHUTDOWN_SECONDS
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        _service().key_value_set(ENDS, f"{who or _name(number)}\n{why}")
    while number == 0 and time.monotonic() < deadline and not all(_has_ended(*peer) for peer in PLACES[1:]):
        time.sleep(0.2)


def all_are_ending() -> bool:
    """Whether all processes call this within `SAME_SECONDS`."""
    import jax

    try:
        _service().wait_at_barrier("all end", 1000 * SAME_SECONDS)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def announced_end() -> tuple[str, str] | None:
    """The process that has announced its end, "process 1 on node2", and why; None: no one has."""
    import jax

    try:
        who, why = _service().key_value_try_get(ENDS).split("\n", 1)
    except (jax.errors.JaxRuntimeError, AttributeError):  # there is no such key, or no service (any more)
        return None
    return who, why


def watch_for_ends(heard: Callable[[str, str], None]) -> None:
    """From a thread, calls `heard(who, why)` when another process has announced its end."""

    def look() -> None:
        while not ENDING.wait(LISTEN_SECONDS):
            if (end := announced_end()) and not ENDING.is_set():
                heard(*end)

    if PLACES:
        thread = threading.Thread(target=look, name="listens to the other processes", daemon=True)
        thread.start()
        # Python would end a thread in the middle of a call of JAX, and C++ then the program.
        atexit.register(thread.join, SAME_SECONDS)
        atexit.register(ENDING.set)  # the last that is registered runs first


def _service() -> Any:
    """JAX's client of the coordination service, which has no public name; as in orbax and Flax."""
    from jax._src import distributed

    return distributed.global_state.client


def gather_texts(text: str) -> list[str]:
    """The texts of all processes; every process must call this."""
    from jax.experimental import multihost_utils

    encoded = np.frombuffer(text.encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.int32(len(encoded))))
    padded = np.zeros(max(1, *sizes), np.uint8)
    padded[: len(encoded)] = encoded
    rows = np.reshape(multihost_utils.process_allgather(padded), (len(sizes), -1))
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]


def shared_errors() -> contextlib.AbstractContextManager[None]:
    """Raises errors of any process on all of them, so that none waits for one that has exited."""
    import jax

    return _of_several() if jax.process_count() > 1 else contextlib.nullcontext()


@contextlib.contextmanager
def _of_several() -> Iterator[None]:
    refused = ""
    try:
        yield
    except UserError as error:
        refused = str(error)
    errors = [f"process {number}: {text}" for number, text in enumerate(gather_texts(refused)) if text]
    if errors:
        raise UserError(refused or errors[0])


def wait_for_all() -> None:
    """Waits until all processes have come to their end, however long that takes: leaving before the others
    would end them."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("the end of the command")
    ENDING.set()
