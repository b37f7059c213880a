from __future__ import annotations

from pathlib import Path

import pytest

from sft_cli.plan import nvcc


def compiler(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "nvcc").write_text("#!/bin/sh\n")
    (folder / "nvcc").chmod(0o755)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment without one, and no wheel or system folder."""
    monkeypatch.setattr(nvcc, "files", lambda name: [])
    places = nvcc._places
    monkeypatch.setattr(
        nvcc, "_places", lambda environment: [p for p in places(environment) if p != Path("/usr/local/cuda/bin/nvcc")]
    )
    return {"PATH": str(tmp_path / "nothing")}


def test_none(nowhere: dict[str, str]) -> None:
    assert not nvcc.has_nvcc(nowhere)


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_in_a_toolkit(nowhere: dict[str, str], tmp_path: Path, variable: str) -> None:
    compiler(tmp_path / "cuda" / "bin")
    assert nvcc.has_nvcc({**nowhere, variable: str(tmp_path / "cuda")})
    assert not nvcc.has_nvcc({**nowhere, variable: str(tmp_path / "elsewhere")})


def test_on_the_path(nowhere: dict[str, str], tmp_path: Path) -> None:
    compiler(tmp_path / "bin")
    assert nvcc.has_nvcc({"PATH": str(tmp_path / "bin")})
