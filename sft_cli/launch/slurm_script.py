"""The sbatch script of a recipe: one launcher a machine, a notice before the end, and back into the queue."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from sft_cli.recipe.schema import Recipe

_GPUS_OF_A_NODE = 8
_NOTICE_SECONDS = 300

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpus}
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --output={output}
# One file over all starts of the job.
#SBATCH --open-mode=append
# {notice} s before the time is over, or when the job has to make room: the run saves after its step and ends with 143.
#SBATCH --signal=USR1@{notice}
#SBATCH --requeue

# One launcher on each machine. It starts a process for each GPU there; where all meet follows from the job.
# It uses all cores of its machine (--cpu-bind=none).
# --resume: from the newest checkpoint; the first time there is none, and the run begins.
srun --ntasks-per-node=1 --cpu-bind=none {command}
code=$?

# Stopped by a notice and saved, not done: back into the queue. (scancel ends this script before it gets here.)
if [ "$code" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def slurm_script(recipe: Recipe, recipe_path: Path, overrides: Sequence[str]) -> str:
    """
    Args:
        recipe_path: what the script trains; absolute.
        overrides: what is given to `--set`.
    """
    output = Path(recipe.output_dir)
    words = ["sftune", "train", str(recipe_path), "--resume"]
    for override in overrides:
        words += ["--set", override]
    return _SCRIPT.format(
        name=_plain(output.name) or "sftune",
        nodes=recipe.launch.nodes,
        gpus=_gpus(recipe),
        output=f"{_plain(output.name) or 'sftune'}-%j.log",
        notice=_NOTICE_SECONDS,
        command=shlex.join(words),
    )


def _gpus(recipe: Recipe) -> str:
    gpus = recipe.launch.gpus
    if gpus == "auto":
        return (
            "# launch.gpus is auto, as many as the job gets: write what your machines have.\n"
            f"#SBATCH --gpus-per-node={_GPUS_OF_A_NODE}"
        )
    return f"#SBATCH --gpus-per-node={gpus}"


def _plain(name: str) -> str:
    """A name in which neither Slurm nor a shell finds anything."""
    return "".join(character if character.isalnum() or character in "-_." else "-" for character in name)
