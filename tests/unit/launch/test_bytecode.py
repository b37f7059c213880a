from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sft_cli.launch.bytecode import variables

KEPT = {"PYTHONPYCACHEPREFIX": "/cache/sftune/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
CACHE = {"XDG_CACHE_HOME": "/cache"}
NEVER = {**CACHE, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that was installed without bytecode."""
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return tmp_path / "a_package"


def found(environ: dict[str, str]) -> dict[str, str]:
    return variables(environ, ["a_package", "no_package"])


def test_python_that_may_write_keeps_its_own(package: Path) -> None:
    assert found(CACHE) == {}


def test_where_it_is_told_to_write_none_it_is_kept_elsewhere(package: Path) -> None:
    assert found(NEVER) == KEPT
    assert found({**NEVER, "XDG_CACHE_HOME": "", "HOME": "/home/me"})["PYTHONPYCACHEPREFIX"].startswith("/home/me/")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else_is_not_written_to(package: Path) -> None:
    package.chmod(0o555)
    assert found(CACHE) == KEPT


def test_what_is_there_is_used(package: Path) -> None:
    compiled = Path(importlib.util.cache_from_source(str(package / "__init__.py")))
    compiled.parent.mkdir()
    compiled.touch()
    assert found(NEVER) == {}


def test_another_folder_of_the_users_is_kept(package: Path) -> None:
    assert found({**NEVER, "PYTHONPYCACHEPREFIX": "/mine"}) == {}


def test_this_process_and_its_children_keep_it(package: Path, tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from sft_cli.launch.bytecode import keep_bytecode;"
        "keep_bytecode(['a_package']); import a_package, wave;"
        "subprocess.run([sys.executable, '-c', 'import chunk_of_child'], check=True)"
    )
    (tmp_path / "chunk_of_child.py").touch()
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    environ = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    environ.pop("PYTHONPYCACHEPREFIX", None)
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    kept = {path.name.split(".")[0] for path in (tmp_path / "sftune" / "bytecode").rglob("*.pyc")}
    assert {"__init__", "wave", "chunk_of_child"} <= kept
    assert not (package / "__pycache__").exists()
