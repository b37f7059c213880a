"""`python -m sft_cli.worker --plan PLAN --logs FOLDER [--control FOLDER] [--dry-run] [--resume-from CHECKPOINT]`:
started once a rank."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from sft_cli.launch.control import ControlFolder
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.ranks import Ranks
from sft_cli.launch.resume import Resume


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sft_cli.worker")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--control", type=Path, default=None)
    parser.add_argument("--dry-run", action="store_true")
    Resume.add_options(parser)
    options = parser.parse_args()

    control = None if options.control is None else ControlFolder(options.control)
    with RankSession(Ranks.from_environment(os.environ), logs=options.logs, control=control) as session:
        # torch takes seconds to import: by now the launcher knows this process, and an error has a place to go.
        from sft_cli.worker.run import run

        session.stopped_by = run(options.plan, session, resume=Resume.from_options(options), is_dry_run=options.dry_run)
    if options.dry_run and control is None:
        shutil.rmtree(options.logs.parent)  # a temporary folder, which no launcher is there to remove


if __name__ == "__main__":
    main()
