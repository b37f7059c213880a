"""Refuses connections and look-ups beyond this machine, and writes down what was tried, swallowed or not.

An audit hook sees every use of Python's sockets, whoever makes it; sockets of C++ or Rust it does not see, nor the
look-up that `connect` makes of a name by itself, before the connection is refused. It can't be taken back.
"""

from __future__ import annotations

import os
import sys
from typing import Any

LOG_VARIABLE = "SFTUNE_TESTS_NETWORK_LOG"
"""Names the file that each attempt becomes a line of."""

_CONNECTING = {"socket.connect", "socket.sendto", "socket.sendmsg"}  # connect_ex raises the event of connect
_RESOLVING = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}


def install() -> None:
    """From here on this process reaches loopback addresses and Unix sockets alone."""
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Raises what a machine without a network raises; called for every audit event, so it has to be quick."""
    if event in _CONNECTING:
        _connecting(event, *arguments)
    elif event in _RESOLVING:
        _resolving(event, arguments[0])


def _connecting(event: str, sender: Any, address: Any) -> None:
    import errno
    import socket

    inet = sender.family in (socket.AF_INET, socket.AF_INET6)
    if inet and address is not None and not _is_loopback(_text(address[0])):
        message = _write_down(event, address[:2])
        raise OSError(errno.ENETUNREACH, message)


def _resolving(event: str, host: Any) -> None:
    import socket

    name = _text(host)
    # A number needs no resolver, and torchrun asks for this machine's own name.
    if not _is_loopback(name) and not _is_number(name) and name != socket.gethostname():
        raise socket.gaierror(socket.EAI_AGAIN, _write_down(event, name))


def _text(host: Any) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes | bytearray) else str(host or "")


def _is_loopback(host: str) -> bool:
    """Also the unspecified addresses: a connection to them stays on this machine."""
    import ipaddress

    if host in ("", "localhost") or host.endswith(".localhost"):
        return True
    if not _is_number(host):
        return False
    address = ipaddress.ip_address(host.partition("%")[0])
    return address.is_loopback or address.is_unspecified


def _is_number(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _write_down(event: str, target: object) -> str:
    message = f"tests use no network: {event} of {target!r} was refused"
    log = os.environ.get(LOG_VARIABLE)
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{message} in process {os.getpid()}, {' '.join(sys.orig_argv)[:200]!r}\n")
    return message
