from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sft_cli.launch.slurm_script import slurm_script
from sft_cli.recipe.load import load_recipe


def script(*overrides: str, path: Path = Path("/home/a b/r.yaml")) -> str:
    return slurm_script(load_recipe(None, overrides).recipe, path, overrides)


def test_what_the_recipe_asks_for_and_what_survives_pre_emption() -> None:
    lines = script("launch.nodes=2", "launch.gpus=4", "output_dir=/runs/my run").splitlines()
    for line in (
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --signal=USR1@300",
        "#SBATCH --requeue",
        "#SBATCH --job-name=my-run",
        "#SBATCH --output=my-run-%j.log",
    ):
        assert line in lines
    command = next(line for line in lines if line.startswith("srun "))
    assert command == (
        "srun --ntasks-per-node=1 --cpu-bind=none sftune train '/home/a b/r.yaml' --resume"
        " --set launch.nodes=2 --set launch.gpus=4 --set 'output_dir=/runs/my run'"
    )


def test_auto_is_a_number_to_change() -> None:
    assert "#SBATCH --gpus-per-node=8" in script().splitlines()
    assert "write what your machines have" in script()


@pytest.mark.parametrize(("code", "is_requeued"), [(0, False), (1, False), (130, False), (143, True)])
def test_only_a_run_that_was_told_to_stop_goes_back_into_the_queue(
    tmp_path: Path, code: int, is_requeued: bool
) -> None:
    for name, body in (("srun", f"exit {code}"), ("scontrol", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    ended = subprocess.run(["bash"], input=script(), env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, "requeue 7\n" if is_requeued else "")
