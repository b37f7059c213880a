"""Pictures of an HTML page in a real browser, light and dark: `python docs/screenshot_page.py PAGE PICTURE [HEIGHT]`.

Writes PICTURE-light.png and PICTURE-dark.png, and fails where the page says anything on the browser's console: an error
of a script, or something that its policy forbade it to load. Needs Debian's `chromium`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, HEIGHT = 1240, 1300
_SCHEMES = {"dark": 0, "light": 1}
"""Names of `prefers-color-scheme` to Blink's numbers."""


def take(page: Path, picture: Path, scheme: str, height: int = HEIGHT) -> list[str]:
    """Takes one picture.

    Returns:
        What the page said on the console.
    """
    with tempfile.TemporaryDirectory() as profile:
        command = [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", "--enable-logging=stderr",
            f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={_SCHEMES[scheme]}",
            f"--window-size={WIDTH},{height}", f"--screenshot={picture.absolute()}", page.absolute().as_uri(),
        ]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if ended.returncode or not picture.is_file():
        sys.exit(f"the browser failed: {ended.stderr.strip()[-500:]}")
    return [line for line in ended.stderr.splitlines() if ":CONSOLE" in line]


def main() -> None:
    """Takes both pictures."""
    page, picture = Path(sys.argv[1]), Path(sys.argv[2])
    height = int(sys.argv[3]) if len(sys.argv) > 3 else HEIGHT
    picture.parent.mkdir(parents=True, exist_ok=True)
    said = []
    for scheme in _SCHEMES:
        said += take(page, picture.with_name(f"{picture.name}-{scheme}.png"), scheme, height)
    if said:
        sys.exit("the page is not quiet:\n" + "\n".join(said))


if __name__ == "__main__":
    main()
