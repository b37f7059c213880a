from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sft_cli.launch.log_files import last_lines, rank_log

WORKER = """
import os, sys
from pathlib import Path
from sft_cli.launch.log_files import output_to_log
rank, terminal_fd = int(sys.argv[2]), int(sys.argv[3])
print("before")
with output_to_log(Path(sys.argv[1]), rank, terminal_fd=terminal_fd) as streams:
    print("python")
    os.write(2, b"descriptor\\n")
    os.system("echo child")
    if streams.terminal is not None:
        streams.terminal.write("terminal\\n")
    streams.errors.write("errors\\n")
print("after")
"""


def run_worker(logs: Path, rank: int, terminal_fd: int = 1, **streams: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WORKER, str(logs), str(rank), str(terminal_fd)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        **streams,
    )


def test_all_output_of_a_rank_is_in_its_log(tmp_path: Path) -> None:
    done = run_worker(tmp_path / "logs", 1)
    lines = rank_log(tmp_path / "logs", 1).read_text().splitlines()
    assert sorted(lines[1:]) == ["child", "descriptor", "python"]
    assert " rank 1, pid " in lines[0]
    assert done.stdout == "before\nafter\n"
    assert done.stderr == "errors\n"


def test_rank_0_still_reaches_the_terminal(tmp_path: Path) -> None:
    assert run_worker(tmp_path, 0).stdout == "before\nterminal\nafter\n"


def test_terminal_may_come_as_stdin(tmp_path: Path) -> None:
    with (tmp_path / "terminal").open("w") as terminal:
        done = run_worker(tmp_path, 0, terminal_fd=0, stdin=terminal)
    assert (tmp_path / "terminal").read_text() == "terminal\n"
    assert done.stdout == "before\nafter\n"


def test_second_run_adds_to_the_log(tmp_path: Path) -> None:
    run_worker(tmp_path, 1)
    run_worker(tmp_path, 1)
    assert rank_log(tmp_path, 1).read_text().count("python") == 2


def test_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert last_lines(path, 2) == []
    path.write_bytes(b"x" * 100_000 + b"\nfirst\n\nsecond \xff\nthird\n\n")
    assert last_lines(path, 2) == ["second \ufffd", "third"]
