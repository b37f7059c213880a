"""The generated pages follow the code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.no_network import python_path

ROOT = Path(__file__).parents[3]


def generate(docs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(docs / "generate.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_pages_are_up_to_date() -> None:
    ended = generate(ROOT / "docs", "--check")
    assert ended.returncode == 0, ended.stderr


def test_a_stale_page_is_noticed_and_written_again(tmp_path: Path) -> None:
    for name in ("generate.py", "recipe.md", "cli.md", "errors.md", "backends.md", "resume.md", "metrics.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path / name)
    (tmp_path / "cli.md").write_text("stale")
    ended = generate(tmp_path, "--check")
    assert ended.returncode == 1
    assert "cli.md" in ended.stderr
    assert "recipe.md" not in ended.stderr
    assert generate(tmp_path).returncode == 0
    assert (tmp_path / "cli.md").read_text() == (ROOT / "docs" / "cli.md").read_text()
