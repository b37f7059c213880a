"""Writes docs/images/data.svg: what a terminal of 100 columns shows of `sftune data configs/tiny.yaml`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COMMAND = ("data", "configs/tiny.yaml", "--rows", "1")
COLUMNS = 100


def shown() -> str:
    """The command's output on a terminal, with its colours."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "sft_cli", *COMMAND]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=terminal)
    os.close(terminal)
    chunks: list[bytes] = []
    try:
        while chunk := os.read(controller, 65536):
            chunks.append(chunk)
    except OSError:  # how Linux tells the end of a terminal
        pass
    if process.wait():
        sys.exit("the command failed")
    return b"".join(chunks).decode().replace("\r\n", "\n")


def main() -> None:
    """Writes the picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown().rstrip("\n")))
    svg = console.export_svg(title=f"sftune {' '.join(COMMAND[:2])}")
    # A picture in a README may load nothing; without these the reader's own monospaced font is taken.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    image = ROOT / "docs" / "images" / "data.svg"
    image.parent.mkdir(exist_ok=True)
    image.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
