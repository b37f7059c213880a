"""The block that keeps all tests off the network, here and in child processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import ROOT
from support.no_network import python_path

ELSEWHERE = "192.0.2.1"  # RFC 5737: for documentation, never routed; 2001:db8:: is its like (RFC 3849)
SWALLOWS = f"""
import contextlib, socket
with contextlib.suppress(OSError), socket.socket() as one:
    one.connect(("{ELSEWHERE}", 80))
"""


@pytest.mark.expects_no_network
@pytest.mark.parametrize("host", [ELSEWHERE, "2001:db8::1"])
@pytest.mark.parametrize("call", ["connect", "connect_ex", "sendto"])
def test_an_address_elsewhere_is_refused(host: str, call: str, network_attempts: Callable[[], list[str]]) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = socket.SOCK_DGRAM if call == "sendto" else socket.SOCK_STREAM
    with socket.socket(family, kind) as one, pytest.raises(OSError, match=f"tests use no network.*{host}"):
        getattr(one, call)(*([b"x"] if call == "sendto" else []), (host, 80))
    assert len(network_attempts()) == 1
    assert host in network_attempts()[0]


@pytest.mark.expects_no_network
@pytest.mark.parametrize("look_up", [socket.gethostbyname, lambda host: socket.getaddrinfo(host, 443)])
def test_a_name_is_not_looked_up(look_up: Callable[[str], object]) -> None:
    with pytest.raises(socket.gaierror, match=r"tests use no network.*huggingface\.co"):
        look_up("huggingface.co")


def test_this_machine_is_reached(network_attempts: Callable[[], list[str]], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1])).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
    assert network_attempts() == []


@pytest.mark.expects_no_network
def test_a_child_process_is_offline_and_tells_even_what_it_swallows(network_attempts: Callable[[], list[str]]) -> None:
    subprocess.run([sys.executable, "-c", SWALLOWS], check=True)
    assert len(network_attempts()) == 1
    assert ELSEWHERE in network_attempts()[0]


@pytest.mark.parametrize(
    ("mark", "outcome"), [("", "1 passed, 1 error"), ("@pytest.mark.expects_no_network", "1 passed")]
)
def test_a_swallowed_attempt_fails_a_test_that_has_not_said_so(tmp_path: Path, mark: str, outcome: str) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(f"import pytest\n{mark}\ndef test_it():\n    exec({SWALLOWS!r})\n")
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            os.devnull,
            "-p",
            "support.no_network",
            "-p",
            "no:cacheprovider",
            str(test),
        ],
        env={**os.environ, "PYTHONPATH": python_path(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"== {outcome} in" in ended.stdout, ended.stdout
