from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sft_cli.errors import ModelError
from sft_cli.plan import generic_probe, remote_code
from sft_cli.plan.child_process import ask, asking_environment


def test_a_child_imports_this_package_and_nothing_from_the_working_directory(tmp_path: Path) -> None:
    for name in ("json", "sft_cli"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of the working directory')")
    command = [sys.executable, "-c", "import json, sft_cli; print(sft_cli.__file__)"]
    asked = subprocess.run(command, cwd=tmp_path, env=asking_environment(), capture_output=True, text=True, check=True)
    assert Path(asked.stdout.strip()).parent == Path(remote_code.__file__).parents[1]


def test_all_who_ask_a_child_give_it_that_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model's folder may be the working directory, and hold a torch.py."""
    environments = []

    def run(command: list[str], *, env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        environments.append(env)
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}))
    remote_code.require_trust(tmp_path, "config.json", trusted=False, where="model.path")
    with pytest.raises(ModelError, match="can't be built"):
        generic_probe.probe_model({"model_type": "own"}, code_folder=None, weights_folder=None, where=None)
    assert [environment["PYTHONSAFEPATH"] for environment in environments] == ["1", "1"]


def test_a_child_never_waits_for_a_terminal() -> None:
    """Whatever it would like to be told (transformers asks whether code may run), it reads an end of file."""
    asked = ask(["-c", "import sys; print(repr(sys.stdin.read()), sys.stdin.isatty())"], limit_seconds=30)
    assert (asked.stdout, asked.returncode) == ("'' False\n", 0)


def test_a_child_is_asked_a_question_with_variables_of_its_own() -> None:
    code = "import os, sys; print(sys.stdin.read(), os.environ['OWN'], os.environ['HF_HUB_OFFLINE'])"
    asked = ask(["-c", code], limit_seconds=30, question="why", environment={"OWN": "yes"})
    assert asked.stdout == "why yes 1\n"


def test_a_child_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ask(["-c", "import time; time.sleep(60)"], limit_seconds=0.5)
