"""`python -m sft_cli.telemetry.trackers NAME`: started once a tracker by rank 0."""

from __future__ import annotations

import sys
from importlib import import_module

from sft_cli.telemetry.trackers.serve import serve


def main() -> None:
    name = sys.argv[1]
    # Only the one that is asked for: each imports its package, and most are not installed.
    serve(name, import_module(f"sft_cli.telemetry.trackers.to_{name}").open_tracker)


if __name__ == "__main__":
    main()
