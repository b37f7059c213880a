"""Runs the process that checks, from a command line that has no torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from sft_cli.errors import KernelError
from sft_cli.kernels.check.request import Request, Row
from sft_cli.plan.child_process import asking_environment, last_words


@dataclass(frozen=True)
class Answer:
    """What a check found."""

    torch: str
    triton: str | None
    rows: list[Row]


def ask(request: Request, on_begin: Callable[[str], None], environment: Mapping[str, str]) -> Answer:
    """Every backend of the slots, checked.

    Args:
        on_begin: called with `conv causal_conv1d` as each begins.
        environment: of this process, and where kernels are compiled to.

    Raises:
        KernelError: torch can't be imported, or the check itself broke.
    """
    command = [sys.executable, "-m", "sft_cli.kernels.check"]
    versions: dict[str, str | None] | None = None
    rows: list[Row] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=asking_environment(environment),
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                with suppress(BrokenPipeError):  # it is dead already, and its last line says why
                    process.stdin.write(request.model_dump_json())
                    process.stdin.close()
                for line in process.stdout:
                    if not line.startswith('{"'):  # printed by whatever Python runs when it starts
                        continue
                    said = json.loads(line)
                    if "began" in said:
                        on_begin(said["began"])
                    elif "row" in said:
                        rows.append(Row.model_validate(said["row"]))
                    else:
                        versions = said
            finally:
                # SIGTERM would leave its child; on SIGINT it ends that first.
                if process.poll() is None and sys.exc_info()[0] is not None:
                    process.send_signal(2)
        if process.returncode or versions is None:
            log.seek(0)
            raise KernelError(
                f"the check itself could not run: {last_words(log.read(), process.returncode)}",
                fix="See whether `python -c 'import torch'` works in this environment.",
            )
    return Answer(str(versions["torch"]), versions["triton"], rows)
