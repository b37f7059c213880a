from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from sft_cli.telemetry.live_view import LiveView, render
from sft_cli.telemetry.progress import Progress
from sft_cli.telemetry.records import EvaluationRecord, StepRecord
from sft_cli.telemetry.terminal import open_view

SHOW_CURSOR = "\x1b[?25h"
MakeStep = Callable[..., StepRecord]


def text_of(progress: Progress, width: int) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(render(progress, width))
    return capture.get()


def read_until(controller: int, end: str) -> str:
    """What a terminal shows, up to and with `end`: it arrives in pieces, later than it was written."""
    shown = b""
    while end.encode() not in shown:
        assert select.select([controller], [], [], 10)[0], shown
        shown += os.read(controller, 100_000)
    return shown.decode()


def test_line_says_it_all(make_step: MakeStep) -> None:
    progress = replace(Progress(40).after(make_step(1, 4.0)).after(make_step(2, 2.0)), eval_loss=1.25)
    text = text_of(progress, width=140)
    for part in ("step 2/40", "loss 3.0000  (last 2.0000)", "eval 1.2500", "1,800 tok/s", "lr 3.0e-03", "0:19 left"):
        assert part in text


@pytest.mark.parametrize(
    ("width", "parts"),
    [
        (80, ["step 2/40  loss 3.0000  eval 1.2500  1,800 tok/s  0:19 left"]),
        (50, ["step 2/40  loss 3.0000  1,800 tok/s  0:19 left"]),
    ],
)
def test_a_narrow_terminal_loses_whole_cells(make_step: MakeStep, width: int, parts: list[str]) -> None:
    progress = replace(Progress(40).after(make_step(1, 4.0)).after(make_step(2, 2.0)), eval_loss=1.25)
    text = text_of(progress, width)
    assert all(part in text for part in parts)
    assert "lr" not in text


def test_a_terminal_without_columns_is_taken_for_one_of_80(make_step: MakeStep) -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        with open_view(stream, 40) as view:
            view.show_step(make_step(1))
            view.say("saved")
        shown = read_until(controller, SHOW_CURSOR)
    os.close(controller)
    assert "step 1/40" in shown
    assert "saved" in shown


@pytest.mark.parametrize("width", [20, 60, 140])
def test_line_is_one_line_on_any_terminal(make_step: MakeStep, width: int) -> None:
    assert text_of(Progress(40).after(make_step(1)), width).count("\n") == 1


def test_terminal_gets_the_live_view_in_its_own_width(make_step: MakeStep) -> None:
    """Descriptors 0 to 2 are files here, as they are in a worker."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 132, 0, 0))
    with os.fdopen(terminal, "w") as stream:
        with open_view(stream, 40) as view:
            assert isinstance(view, LiveView)
            view.show_step(make_step(1))
            view.show_evaluation(EvaluationRecord(1, 1.25, 10))
            view.say("checkpoint saved to " + "x" * 200)
        shown = read_until(controller, SHOW_CURSOR)
    os.close(controller)
    assert "0:20 left" in shown, "80 columns would have cut it off"
    assert "eval loss 1.2500" in shown
    assert "x" * 200 in shown, "a path may not be folded"
    assert shown.rstrip().endswith(SHOW_CURSOR)
