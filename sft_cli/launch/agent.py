"""torchrun in a process that dies with the launcher and writes down which ranks failed.

python -m sft_cli.launch.agent LAUNCHER_PID CONTROL_FOLDER TORCHRUN_ARGUMENTS...
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sft_cli.launch.control import ControlFolder
from sft_cli.launch.stop import STOP_SIGNALS
from sft_cli.launch.torchrun import AGENT_PID
from sft_cli.plan.orphans import die_with_parent


def main() -> int:
    launcher_pid, control, *torchrun_arguments = sys.argv[1:]
    die_with_parent(int(launcher_pid))
    os.environ[AGENT_PID] = str(os.getpid())
    for number in STOP_SIGNALS:
        # A scheduler that signals every process of a job must not end torchrun before the workers have saved.
        signal.signal(number, signal.SIG_IGN)

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(torchrun_arguments)
    except ChildFailedError as error:
        exit_codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        ControlFolder(Path(control)).write_exits(exit_codes)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
