"""A run that goes on after a rank was lost, as often as `launch.max_restarts` says."""

from __future__ import annotations

from collections.abc import Callable

from sft_cli.errors import SftError
from sft_cli.launch.resume import Resume


def with_restarts(
    run: Callable[[Resume | None], int],
    first: Resume | None,
    newest: Callable[[], Resume | None],
    *,
    max_restarts: int,
    say: Callable[[str], None],
) -> int:
    """Runs workers, and again where one of them failed for a reason that another try may not meet.

    A process that was killed or hung, a machine's fault or a bug may pass. What the user has to mend (a recipe, data,
    a disk, memory, a loss that is not a number) would only be met again, and a second signal of the user is obeyed.

    Args:
        run: starts the workers; returns the command's exit code.
        first: what they restore the first time.
        newest: what they restore after a failure; None starts at step 0.
        say: shows the user a line.

    Raises:
        SftError: the failure after which there was no restart.
    """
    resume = first
    for restarts_left in range(max_restarts, -1, -1):
        try:
            return run(resume)
        except SftError as error:
            if not restarts_left or type(error) is not SftError:
                raise
            resume = newest()
            place = "step 0: no checkpoint was complete" if resume is None else str(resume.checkpoint)
            say(f"{error}\nrestarting from {place}; {restarts_left - 1} restarts are left")
    raise AssertionError("the last try returns or raises")
