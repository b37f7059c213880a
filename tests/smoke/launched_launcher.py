"""Runs `launched_worker` under the real launcher: `python launched_launcher.py LOGS RANKS`."""

from __future__ import annotations

import sys
from pathlib import Path

from sft_cli.errors import SftError
from sft_cli.launch import supervise
from sft_cli.plan.plan import World


def main() -> int:
    logs, ranks = Path(sys.argv[1]), int(sys.argv[2])
    supervise._AFTER_FAILURE_SECONDS = 1.0  # these workers need no longer
    world = World(ranks=ranks, device="cpu")
    try:
        return supervise.run_workers(logs / "plan.json", world, logs, module="launched_worker")
    except SftError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
