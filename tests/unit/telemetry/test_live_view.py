from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from support.screen import Screen

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.live_lines import live_lines
from sft_cli.telemetry.live_view import LiveView
from sft_cli.telemetry.progress import Progress
from sft_cli.telemetry.records import EvaluationRecord, StepRecord
from sft_cli.telemetry.terminal import open_view

SHOW_CURSOR = "\x1b[?25h"
GPU = GpuReading(utilization=0.98, temperature_c=62, power_w=541.3)
MakeStep = Callable[..., StepRecord]


class Terminal:
    """A terminal of the system's, and what it shows."""

    def __init__(self, columns: int, rows: int = 24) -> None:
        self.controller, self.terminal = pty.openpty()
        self.resize(columns, rows)
        self.screen = Screen(columns)
        self.written = ""

    def resize(self, columns: int, rows: int = 24) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_all(self) -> None:
        """Until nothing more comes."""
        while select.select([self.controller], [], [], 0.3)[0]:
            self._take(os.read(self.controller, 100_000))

    def read_until(self, end: str) -> None:
        """Up to and with `end`: it arrives in pieces, later than it was written."""
        fresh = b""
        while end.encode() not in fresh:
            assert select.select([self.controller], [], [], 10)[0], fresh
            fresh += os.read(self.controller, 100_000)
        self._take(fresh)

    def _take(self, fresh: bytes) -> None:
        self.written += fresh.decode()
        self.screen.take(fresh.decode())


@pytest.fixture
def make_terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(columns: int, rows: int = 24) -> Terminal:
        made.append(Terminal(columns, rows))
        return made[-1]

    yield make
    for terminal in made:
        os.close(terminal.controller)


def trained(make_step: MakeStep, steps: int = 120, **fields: object) -> Progress:
    progress = Progress(400)
    for step in range(1, steps + 1):
        progress = progress.after(make_step(step, 4.0 - step / 60, gpu=GPU, **fields))
    return replace(progress, eval_loss=2.125)


def text_of(progress: Progress, width: int) -> list[str]:
    return [line.plain for line in live_lines(progress, width)]


def test_200_columns_show_all(make_step: MakeStep) -> None:
    far, loss, rates, gpu = text_of(trained(make_step), 200)
    assert far == "━" * 40 + "  step 120/400  30%  2:20 left"
    assert re.fullmatch(r"loss 2\.3157  █[█▇▆▅▄▃▂▁]{78}▁  \(last 2\.0000\)  eval 2\.1250", loss)
    assert rates == "1,800 tok/s  0.5 s/step  lr 3.0e-03  grad 1.50  0.8 GiB"
    assert gpu == "GPU 98%  62 °C  541 W"


def test_80_columns_show_nearly_all(make_step: MakeStep) -> None:
    far, loss, rates, gpu = text_of(trained(make_step), 80)
    assert far == "━" * 40 + "  step 120/400  30%  2:20 left"
    assert re.fullmatch(r"loss 2\.3157  █[█▇▆▅▄▃▂▁]+▁  \(last 2\.0000\)  eval 2\.1250", loss)
    assert len(loss) == 80
    assert rates == "1,800 tok/s  0.5 s/step  lr 3.0e-03  grad 1.50  0.8 GiB"
    assert gpu == "GPU 98%  62 °C  541 W"


def test_40_columns_keep_what_tells_most(make_step: MakeStep) -> None:
    far, loss, rates, gpu = text_of(trained(make_step), 40)
    assert far == "━━━━━━━━━━  step 120/400  30%  2:20 left"
    assert re.fullmatch(r"loss 2\.3157  [█▇▆▅▄▃▂▁]{14}  eval 2\.1250", loss)
    assert rates == "1,800 tok/s  0.5 s/step  0.8 GiB"
    assert gpu == "GPU 98%  62 °C  541 W"


def test_what_a_later_reading_has_is_shown_too(make_step: MakeStep) -> None:
    @dataclass(frozen=True)
    class Later(GpuReading):
        sm_clock_mhz: float = 1980.0
        sm_activity: float = 0.7
        clock_limits: tuple[str, ...] = ("thermal slowdown",)
        nvlink_errors: int = 3
        ecc_errors: int = 0

    lines = text_of(Progress(40).after(make_step(1, gpu=Later(0.5, 90, 300.0))), 100)
    assert set(lines[3].split("  ")) == {
        "GPU 50%", "90 °C", "300 W", "SM clock 1,980 MHz", "SM activity 70%", "thermal slowdown", "3 nvlink errors",
    }  # fmt: skip


@pytest.mark.parametrize("width", [1, 5, 12, 20, 40, 79, 80, 132, 200])
@pytest.mark.parametrize("steps", [1, 2, 400])
def test_no_line_is_longer_than_the_terminal_is_wide(make_step: MakeStep, width: int, steps: int) -> None:
    lines = live_lines(trained(make_step, steps), width)
    assert all(0 < line.cell_len <= width for line in lines)
    assert not any(line.plain.endswith(" ") for line in lines if width > 30)


def test_a_cpu_has_no_gpu_line(make_step: MakeStep) -> None:
    assert len(text_of(Progress(40).after(make_step(1)), 80)) == 3


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_on_a_terminal(make_step: MakeStep, make_terminal: Callable[..., Terminal], columns: int) -> None:
    """Descriptors 0 to 2 are files here, as they are in a worker."""
    terminal = make_terminal(columns)
    with os.fdopen(terminal.terminal, "w") as stream, open_view(stream, 400) as view:
        assert isinstance(view, LiveView)
        view.say("exactness gate: fine")
        for step in range(1, 121):
            view.show_step(make_step(step, gpu=GPU))
        view.show_evaluation(EvaluationRecord(120, 1.25, 10))
        view.say("saved x")
        terminal.read_all()
        screen = terminal.screen.shown()
        assert screen[:4] == ["exactness gate: fine", "step 120/400  eval loss 1.2500", "saved x", ""]
        assert "step 120/400" in screen[4]
        assert len(screen) == 8
        assert terminal.screen.at == (3, 0), "the cursor waits above the block"
        assert not terminal.screen.shows_cursor
        view.__exit__(None, None, None)
        terminal.read_until(SHOW_CURSOR)
    shown = terminal.screen.shown()
    assert "step 120/400" in shown[3]
    assert shown[-1] == ""
    assert not terminal.screen.folded


def test_a_message_is_never_folded_by_us(make_step: MakeStep, make_terminal: Callable[..., Terminal]) -> None:
    terminal = make_terminal(80)
    with os.fdopen(terminal.terminal, "w") as stream:
        with open_view(stream, 40) as view:
            view.show_step(make_step(1))
            view.say("checkpoint saved to " + "x" * 200)
            view.show_step(make_step(2))
        terminal.read_until(SHOW_CURSOR)
    assert "x" * 200 in terminal.written
    assert "step 2/40" in "\n".join(terminal.screen.shown())
    assert "".join(terminal.screen.shown()).count("x") == 200


def test_what_others_write_stays(make_step: MakeStep, make_terminal: Callable[..., Terminal]) -> None:
    """The launcher says on stderr that it stops."""
    terminal = make_terminal(80)
    with os.fdopen(terminal.terminal, "w") as stream:
        with open_view(stream, 40) as view:
            view.show_step(make_step(1))
            os.write(terminal.terminal, b"SIGINT: stopping after this step\n")
            view.say("saved x")
        terminal.read_until(SHOW_CURSOR)
    shown = terminal.screen.shown()
    assert shown[:2] == ["SIGINT: stopping after this step", "saved x"]
    assert sum("step 1/40" in row for row in shown) == 1


def test_a_resized_terminal_gets_lines_of_its_new_width(
    make_step: MakeStep, make_terminal: Callable[..., Terminal]
) -> None:
    terminal = make_terminal(200)
    with os.fdopen(terminal.terminal, "w") as stream:
        with open_view(stream, 400) as view:
            for step in range(1, 100):
                view.show_step(make_step(step))
            view.say("wide")
            terminal.read_all()
            terminal.resize(40)
            terminal.screen.columns = 40
            view.say("narrow")
        terminal.read_until(SHOW_CURSOR)
    shown = terminal.screen.shown()
    assert shown[:2] == ["wide", "narrow"]
    assert all(len(row) < 40 for row in shown)
    assert sum("step 99/400" in row for row in shown) == 1


def test_a_low_terminal_shows_the_first_lines(make_step: MakeStep, make_terminal: Callable[..., Terminal]) -> None:
    terminal = make_terminal(80, rows=4)
    with os.fdopen(terminal.terminal, "w") as stream:
        with open_view(stream, 40) as view:
            view.show_step(make_step(1))
        terminal.read_until(SHOW_CURSOR)
    assert next(row for row in terminal.screen.shown() if row).endswith("0:20 left")
    assert len(terminal.screen.shown()) == 2


def test_a_terminal_without_columns_is_taken_for_one_of_80(
    make_step: MakeStep, make_terminal: Callable[..., Terminal]
) -> None:
    terminal = make_terminal(0, rows=0)
    terminal.screen.columns = 80
    with os.fdopen(terminal.terminal, "w") as stream:
        with open_view(stream, 40) as view:
            view.show_step(make_step(1))
            view.say("saved")
        terminal.read_until(SHOW_CURSOR)
    assert "step 1/40" in "\n".join(terminal.screen.shown())
    assert not terminal.screen.folded


def test_fast_steps_are_drawn_ten_times_a_second_and_the_last_always(
    make_step: MakeStep, make_terminal: Callable[..., Terminal]
) -> None:
    terminal = make_terminal(80)
    now = 0.0
    with os.fdopen(terminal.terminal, "w") as stream:
        with LiveView(stream, 400, clock=lambda: now) as view:
            for step in range(1, 401):
                now += 0.01
                view.show_step(make_step(step))
        terminal.read_until(SHOW_CURSOR)
    assert 38 <= terminal.written.count("\x1b[J") <= 42
    assert "step 400/400" in terminal.screen.shown()[0]


def test_no_colour_where_none_is_wanted(
    make_step: MakeStep, make_terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = make_terminal(80)
    with os.fdopen(terminal.terminal, "w") as stream:
        with open_view(stream, 40) as view:
            view.show_step(make_step(1))
        terminal.read_until(SHOW_CURSOR)
    assert "step" in terminal.written
    assert not re.search(r"\x1b\[(\d;)*[39]\dm", terminal.written)
