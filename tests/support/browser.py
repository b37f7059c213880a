"""A page in headless Chromium: what it measures at a width, and what its charts say to a pointer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

HAS_BROWSER = shutil.which("chromium") is not None

# A window of Chromium's is at least 500 wide; a frame in it may be narrower.
_FRAME = """<!doctype html><iframe src="{name}" style="width:{width}px;height:3000px;border:0"></iframe><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const said = [...page.querySelectorAll(".plot")].map((plot) => {{
    const box = plot.querySelector("svg").getBoundingClientRect();
    const at = {{ clientX: box.left + box.width / 2, clientY: box.top + 1 }};
    plot.dispatchEvent(new page.defaultView.PointerEvent("pointermove", at));
    return plot.querySelector("output").textContent;
  }});
  const wider = (one) => one.scrollWidth > one.clientWidth + 24;
  const overflow = [...page.querySelectorAll(".card > .charts")].filter(wider);
  document.body.dataset.found = JSON.stringify({{
    width: root.clientWidth, needed: root.scrollWidth, said, overflowing: overflow.length,
  }});
}};
</script>"""


@dataclass(frozen=True)
class Measured:
    width: int
    """Of the page, in CSS pixels."""
    needed: int
    """Width of what is in it; more than `width`: it scrolls sideways."""
    overflowing: int
    """Groups of charts that are wider than their place."""
    said: list[str]
    """By each chart to a pointer in its middle."""


def measure(page: Path, width: int) -> Measured:
    """Opens a page in a frame of that width."""
    frame = page.with_name("frame.html")
    frame.write_text(_FRAME.format(name=page.name, width=width), encoding="utf-8")
    command = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--allow-file-access-from-files", "--disable-web-security",
        f"--user-data-dir={page.with_name('browser')}", "--window-size=1300,1000", "--dump-dom",
        frame.absolute().as_uri(),
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'data-found="([^"]*)"', ended.stdout)
    assert found is not None, ended.stderr[-500:]
    return Measured(**json.loads(unescape(found[1])))
