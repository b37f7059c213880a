"""Fifty starts in a row leave no process, socket or temporary file. `make faults`; ten minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.private_machine import UNSHARE

STARTS = int(os.environ.get("SFTUNE_STARTS", "50"))
SCRIPT = Path(__file__).with_name("starts.py")


def may_unshare() -> bool:
    return sys.platform == "linux" and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="needs namespaces of its own")
def test_starts_in_a_row_leave_nothing(tmp_path: Path) -> None:
    root = SCRIPT.parents[2]
    paths = [str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("TMPDIR", None)
    words = [*UNSHARE, sys.executable, str(SCRIPT), str(tmp_path), str(STARTS)]
    ended = subprocess.run(words, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == 0
    found = json.loads(ended.stdout)
    print(f"\n{STARTS} starts: {json.dumps(found['tried'], indent=2)}")
    assert found["left"] == {"processes": [], "sockets": [], "temporary files": []}
