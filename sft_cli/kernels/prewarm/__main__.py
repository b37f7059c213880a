"""One of the processes that compile: `python -m sft_cli.kernels.prewarm PARENT_PID`, with a Task on stdin.

Writes JSON lines on stdout: the name of each kernel that begins, then that its share is done.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO

from sft_cli.kernels.prewarm.request import Task
from sft_cli.plan.orphans import die_with_parent


def _say(lines: IO[str], share: int, **what: object) -> None:
    """One write, so that the lines of processes that share a pipe stay whole."""
    print(json.dumps({"share": share, **what}), file=lines, flush=True)


def main() -> None:
    """Compiles one share."""
    die_with_parent(int(sys.argv[1]))
    task = Task.model_validate_json(sys.stdin.read())
    # What a package prints must not get between the lines.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.dup2(2, 1)
        # Here and not above: what is imported may print.
        import torch

        from sft_cli.kernels.prewarm.share import compile_share

        device = torch.device("cuda", task.device_index)
        torch.cuda.set_device(device)
        compile_share(task, device, lambda name: _say(lines, task.share, began=name))
        _say(lines, task.share, done=True)


if __name__ == "__main__":
    main()
