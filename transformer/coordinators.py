"""Where the first of several processes listens, and by which address the others find this one."""

import contextlib
import os
import socket

from transformer.errors import UserError

ANYWHERE = "192.0.2.1"
"""An address that is reserved for documentation (RFC 5737): the default route leads to it."""

SECONDS = 300
"""Seconds that JAX may look for the address where a scheduler or a cloud has it."""


def find_coordinator(
    coordinator: str | None, count: int | None, number: int | None
) -> tuple[str, int | None, int | None]:
    """The address of the first process, their count and the number of this one, as JAX finds what is not
    given."""
    from jax._src.clusters import ClusterEnv

    explicit = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS"), count, number
    address, count, number, _ = ClusterEnv.auto_detect_unset_distributed_params(
        *explicit, local_device_ids=(), cluster_detection_method=None, initialization_timeout=SECONDS
    )
    if address is None:
        raise UserError("no address of the first process is given; give --coordinator=HOST:PORT")
    return address, count, number


def check(address: str, is_here: bool) -> str:
    """The host in "host:port", where the first process will listen; if that `is_here`, JAX's service would
    end the program where the port is taken.

    Raises:
      UserError: it is not such an address, or its port cannot be opened here.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"{address!r}; expected HOST:PORT, as in node1:1234")
    try:
        if is_here:
            listening(int(port)).close()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise UserError(f"port {port} of this host cannot be opened ({why}); choose another port") from None
    return host.strip("[]")


def listening(port: int = 0) -> socket.socket:
    """A socket that listens at all addresses of this host, also those of IPv6 if it has any."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", port), backlog=128)


def address_towards(host: str) -> str:
    """The address of the interface of this host that leads to a different host."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, place in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as unsent:
                unsent.connect(place)  # chooses an interface, and sends nothing
                return unsent.getsockname()[0]
    return "127.0.0.1"
