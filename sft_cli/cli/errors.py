"""From exceptions to what the user reads and the exit code that scripts read."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from sft_cli.cli.visible import visible
from sft_cli.errors import SftError, disk_error
from sft_cli.redaction import redacted

_SIGINT_CODE = 130


@contextmanager
def reporting_errors(debug: bool) -> Iterator[None]:
    """Ends the process with one short block on stderr where something inside raises.

    Args:
        debug: print the traceback too.

    Raises:
        SystemExit: with the error's exit code; 1 for a bug; 130 for Ctrl-C.
    """
    try:
        try:
            yield
        finally:
            # Here and not at interpreter exit, where a closed pipe could no longer be caught.
            sys.stdout.flush()
    except SftError as error:
        if debug:
            _print_traceback(error)
        show(error)
        raise SystemExit(error.exit_code) from error
    except BrokenPipeError as error:
        # The reader (`| head`) has enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from error
    except KeyboardInterrupt as error:
        raise SystemExit(_SIGINT_CODE) from error
    except Exception as error:  # the outermost frame: everything else is a bug, and says so
        if debug:
            _print_traceback(error)
        disk = disk_error(error)
        if disk is not None:
            show(disk)
            raise SystemExit(disk.exit_code) from error
        print(bug_report(error, debug), file=sys.stderr)
        raise SystemExit(1) from error


def show(error: SftError) -> None:
    """Prints what is wrong, where, and what to do: red where stderr is a terminal, plain elsewhere."""
    label = "\x1b[1;31merror:\x1b[0m" if _takes_colour() else "error:"
    # An error may quote a row of data.
    print(f"{label} {visible(str(error))}", file=sys.stderr)


def bug_report(error: Exception, debug: bool) -> str:
    """What the user reads when the fault is sftune's."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    summary = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
    hint = (
        "Report it with the traceback above."
        if debug
        else "Run it again with --debug to see the traceback, and report it."
    )
    return f"error: this is a bug in sftune: {visible(redacted(summary))}{place}\n  {hint}"


def _print_traceback(error: Exception) -> None:
    """With tokens and passwords hidden: the errors of HTTP libraries hold URLs and headers."""
    print(redacted("".join(traceback.format_exception(error))), end="", file=sys.stderr)


def _takes_colour() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
