"""No test uses the network: attempts are refused here and in child processes, and fail the test that made them.

A pytest plugin. A test of what happens without a network is marked `expects_no_network`: refused all the same, and no
failure.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.offline import loopback_only

OFFLINE = Path(loopback_only.__file__).parent
"""On PYTHONPATH it keeps a Python process offline."""
MARKER = "expects_no_network"


def python_path(*folders: Path | str) -> str:
    """PYTHONPATH for a child process that imports from `folders` and stays offline."""
    return os.pathsep.join([str(OFFLINE), *map(str, folders)])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}: tries to reach the network, and shows what follows when it can't")
    handle, log = tempfile.mkstemp(prefix="sftune-network-", suffix=".log")
    os.close(handle)
    os.environ[loopback_only.LOG_VARIABLE] = log
    os.environ["PYTHONPATH"] = python_path(*filter(None, [os.environ.get("PYTHONPATH")]))
    loopback_only.install()


def pytest_unconfigure(config: pytest.Config) -> None:
    Path(os.environ.pop(loopback_only.LOG_VARIABLE)).unlink(missing_ok=True)


@pytest.fixture
def network_attempts() -> Callable[[], list[str]]:
    """What was refused since the last test ended, a line each."""
    return _attempts


@pytest.fixture(autouse=True)
def _offline(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    attempts = _attempts()
    _log().write_text("")
    if attempts and request.node.get_closest_marker(MARKER) is None:
        pytest.fail("\n".join(attempts), pytrace=False)


def _attempts() -> list[str]:
    return _log().read_text(encoding="utf-8").splitlines()


def _log() -> Path:
    return Path(os.environ[loopback_only.LOG_VARIABLE])
