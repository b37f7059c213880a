"""One rung of `sftune bench`: a real run of a few steps in fresh processes, in a folder that goes with it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sft_cli.plan.plan import Plan
    from sft_cli.recipe.load import Loaded

_STDERR = 2


@dataclass(frozen=True)
class Order:
    """What is to be run."""

    name: str
    what: str
    """The rung in a few words."""
    recipe: Path | None
    """As the user gave it."""
    sets: tuple[str, ...]
    """All of them: the user's, then the rung's."""
    steps: int
    warm_up: int
    layers: int | None

    def load(self, folder: Path) -> Loaded:
        """The rung's recipe: nothing is evaluated, saved or sent anywhere.

        Raises:
            RecipeError: the rung and the recipe contradict each other.
        """
        from sft_cli.recipe.load import load_recipe

        quiet = (
            "data.eval=[]",
            "evaluate={every_steps: null, at_start: false, keep_best: false, patience: null}",
            "checkpoint.enabled=false",
            "telemetry.trackers=[]",
            "launch.max_restarts=0",
            f"output_dir={folder}",
        )
        # Weights of some layers are of no model; how fast a step is does not depend on them.
        sliced = () if self.layers is None else ("model.weights=random",)
        return load_recipe(self.recipe, [*self.sets, *sliced, *quiet])

    def yaml(self) -> str:
        """The rung's recipe as text, wherever it runs."""
        from sft_cli.recipe.dump import to_yaml

        return to_yaml(self.load(Path("/bench")).recipe)


def plan_rung(order: Order, folder: Path, *, says_misfit: bool = True) -> tuple[Plan, int | None]:
    """The plan of a rung, and the tokens of one pass over its data.

    Args:
        says_misfit: tell on stderr where it may run out of memory.

    Raises:
        SftError: it can't be run.
    """
    from sft_cli.cli.fit_text import misfit_warning
    from sft_cli.cli.planning import plan_run

    plan, prepared = plan_run(order.load(folder), None, None, progress=True, layers=order.layers)
    if says_misfit and (warning := misfit_warning(plan)) is not None:
        print(warning, file=sys.stderr, flush=True)
    tokens = None if plan.recipe.data.streaming else int(prepared.train.offsets[-1])
    return plan, tokens


def run_rung(order: Order, plan: Plan, folder: Path) -> tuple[int, dict[str, Any]]:
    """Runs the ranks of a plan to the end of the bench; their progress goes to stderr.

    Returns:
        The command's exit code where it was told to stop, else 0; and what `worker/bench.py` has written.

    Raises:
        SftError: of the first rank that failed.
    """
    from sft_cli.launch.supervise import run_workers
    from sft_cli.plan.benching import Benching

    result, plan_path = folder / "bench.json", folder / "plan.json"
    asked = Benching(steps=order.steps, warm_up=order.warm_up, started_at=time.time(), result=str(result))
    plan.model_copy(update={"benching": asked}).write(plan_path)
    code = run_workers(plan_path, plan.world, folder / "logs", dry_run=True, saves=False, stdout_fd=_STDERR)
    return code, {} if code else json.loads(result.read_text(encoding="utf-8"))
