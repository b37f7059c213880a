from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "transformers", "datasets", "numpy", "rich")

PROGRAM = """
import importlib, pkgutil, sys
import sft_cli.{room}
for module in pkgutil.iter_modules(sft_cli.{room}.__path__):
    if module.name not in ("live_view", "live_lines"):  # asked for only where there is a terminal
        importlib.import_module(f"sft_cli.{room}.{{module.name}}")
print([name for name in {heavy} if name in sys.modules])
"""


@pytest.mark.parametrize("room", ["launch", "telemetry"])
def test_nothing_heavy_is_imported(room: str) -> None:
    program = PROGRAM.format(room=room, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
