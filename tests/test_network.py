"""Processes on two hosts, which are network namespaces of this machine, and the port of the first one."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import textwrap

import pytest

from tests import runs
from transformer import coordinators, distributed
from transformer.errors import UserError

PROGRAM = """
    import os, signal, socket, sys, time
    number, coordinator = int(sys.argv[1]), sys.argv[2]
    socket.gethostbyname = lambda host: "127.0.1.1"  # as Debian's /etc/hosts has it
    from transformer import distributed
    distributed.connect(coordinator, COUNT, number, heartbeat_seconds=30)
    from jax.experimental import multihost_utils
    print("ended:", [distributed._has_ended(*place) for place in distributed.PLACES], flush=True)
    print("at:", *(place[1] for place in distributed.PLACES), flush=True)
    multihost_utils.sync_global_devices("all have looked")
    if number == COUNT - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    print("found:", distributed.ended_process(), flush=True)
    signal.pause()
"""

HOSTS = "127.0.0.1 localhost\n{0} node0\n{1} node1\n"


@pytest.fixture(params=["10.77.0.{}", "fd77::{}"], ids=["IPv4", "IPv6"])
def hosts(request, tmp_path):
    """Two network namespaces, each with its own loopback interface, joined by a cable: the beginnings of
    commands in them, whose hosts are called node0 and node1, and their addresses."""
    names = [f"test-{os.getpid()}-{number}" for number in range(2)]
    addresses = [request.param.format(1 + number) for number in range(2)]
    (tmp_path / "hosts").write_text(HOSTS.format(*addresses))

    def ip(*arguments):
        return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)

    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            ip("-n", names[0], "link", "add", "one", "type", "veth", "peer", "two", "netns", names[1])
            for name, link, address in zip(names, ("one", "two"), addresses, strict=True):
                more = ["nodad"] if ":" in address else []
                width = "/64" if ":" in address else "/24"
                ip("-n", name, "address", "add", address + width, "dev", link, *more)
                ip("-n", name, "link", "set", link, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', error)}")
        renamed = f'mount --bind {tmp_path}/hosts /etc/hosts && hostname "$0" && exec "$@"'
        commands = [
            ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "sh", "-c", renamed, f"node{number}"]
            for number, name in enumerate(names)
        ]
        if (tried := subprocess.run([*commands[0], "true"], capture_output=True, text=True)).returncode:
            pytest.skip(f"no namespaces here: {tried.stderr}")
        yield commands, addresses


@pytest.mark.thorough
def test_processes_on_two_hosts_find_each_other_and_the_one_that_has_ended(hosts):
    """Two on the host of the coordinator, called by a loopback address by one of them, and one elsewhere."""
    commands, addresses = hosts
    first = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    program, port = textwrap.dedent(PROGRAM).replace("COUNT", "3"), runs.free_port()
    started = [
        subprocess.Popen(
            [*commands[host], sys.executable, "-c", program, str(number), f"{coordinator}:{port}"],
            cwd=runs.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, (host, coordinator) in enumerate([(0, "localhost"), (0, first), (1, first)])
    ]
    try:
        for process in started[:2]:
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("found:"):
                    break
            assert "ended: [False, False, False]\n" in said, said
            assert f"at: {addresses[0]} {addresses[0]} {addresses[1]}\n" in said
            assert said[-1] == "found: process 2 on node1\n"
    finally:
        for process in started:
            process.kill()


def test_a_place_that_refuses_while_its_process_is_alive_says_nothing():
    """As behind a firewall, or where addresses are translated."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        alive, refusing = listening.getsockname()[1], runs.free_port()
        places = [("node0", "127.0.0.1", alive), ("node1", "127.0.0.1", refusing)]
        assert distributed._reachable(places) == [places[0], ("node1", "127.0.0.1", 0)]
    assert distributed._has_ended(*places[0]) and not distributed._has_ended("node1", "127.0.0.1", 0)


def test_the_address_towards_a_host_is_one_that_this_host_has():
    assert coordinators.address_towards("localhost") in ("127.0.0.1", "::1")
    assert coordinators.address_towards("no such host.") == "127.0.0.1"


@pytest.mark.parametrize("host", ["", "127.0.0.1", "::1"])
def test_a_port_that_another_program_has_is_refused(host):
    """Where it listens at a single address too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        taken = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"no {host} here: {error}")
    with taken:
        port = taken.getsockname()[1]
        wanted = rf"port {port} of this host cannot be opened \(Address already in use\); choose another port"
        with pytest.raises(UserError, match=wanted):
            coordinators.check(f"localhost:{port}", is_here=True)
        assert coordinators.check(f"[::1]:{port}", is_here=False) == "::1"
    assert coordinators.check(f"localhost:{port}", is_here=True) == "localhost"


@pytest.mark.parametrize("address", ["localhost", ":1234", "localhost:", "localhost:http", "localhost:70000"])
def test_an_address_without_host_and_port_is_refused(address):
    with pytest.raises(UserError, match=re.escape(f"{address!r}; expected HOST:PORT, as in node1:1234")):
        coordinators.check(address, is_here=True)


def test_what_a_scheduler_says_is_found_where_nothing_is_given(monkeypatch):
    given = {"JOB_ID": "7", "STEP_NODELIST": "node[3-4]", "NTASKS": "2", "PROCID": "1", "LOCALID": "0"}
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert coordinators.find_coordinator(None, None, None) == ("node3:61447", 2, 1)
    assert coordinators.find_coordinator("node9:1", 4, 0) == ("node9:1", 4, 0)


@pytest.mark.thorough
def test_a_taken_port_ends_the_first_process_in_a_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"--coordinator=127.0.0.1:{taken.getsockname()[1]}"
        with runs.start(["--config=configs/lm.py:tiny", place, "--num_processes=2", "--process_id=0"]) as one:
            _, error = one.communicate(timeout=100)
    assert one.returncode == 2
    assert error.startswith("error: --coordinator: the processes did not meet: port "), error
    assert error.count("\n") == 1
