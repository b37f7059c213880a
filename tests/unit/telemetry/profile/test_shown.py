"""What a reader gets: profile.json, text, a comparison, a page."""

from __future__ import annotations

import json
import os
import pty
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.traces import Events, gpu_step

from sft_cli.errors import UsageError
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.profile import document
from sft_cli.telemetry.profile.compare import compare
from sft_cli.telemetry.profile.findings import find
from sft_cli.telemetry.profile.page import page
from sft_cli.telemetry.profile.show import show
from sft_cli.telemetry.profile.summary import Summary, locate
from sft_cli.telemetry.profile.text import NO_FINDINGS, plain, shortened
from sft_cli.telemetry.profile.verdict import verdict

Plans = Callable[..., Plan]
Summaries = Callable[..., Summary]

NAMES = {
    "steps", "step_seconds", "cpu", "gpu", "gpu_busy", "launch_bound", "padding_share", "recompute_share",
    "exposed_communication_seconds", "model_flops_utilization", "findings",
}  # fmt: skip
"""Fixed; others may be beside them."""


def content_of(summary: Summary, plan: Plan) -> dict[str, Any]:
    return document.document(summary, plan, find(summary, plan), verdict(summary, plan))


@pytest.fixture
def content(plan_of: Plans, summary_of: Summaries) -> dict[str, Any]:
    return content_of(summary_of(), plan_of())


@pytest.fixture
def on_a_cpu(plan_of: Plans, summary_of: Summaries) -> dict[str, Any]:
    events = Events()
    events.step(3, 0, 1000)
    events.op("aten::mm", 10, 990)
    return content_of(summary_of(events, tokens=8_192, model_flops_utilization=None, gemm_tflops=None), plan_of())


def test_profile_json(content: dict[str, Any], tmp_path: Path) -> None:
    document.write(tmp_path / "profile.json", content)
    read = json.loads((tmp_path / "profile.json").read_text())
    assert read.keys() >= NAMES
    for side in ("cpu", "gpu"):
        assert read[side].keys() >= {"calls", "seconds", "top"}
        assert sum(row["seconds"] for row in read[side]["top"]) == pytest.approx(read[side]["seconds"])
        assert sum(row["seconds"] for row in read[side]["kinds"]) == pytest.approx(read[side]["seconds"])
    assert read["steps"] == 1
    assert read["profiled_steps"] == [4]
    assert all(one.keys() == {"what", "costs_seconds", "change"} for one in read["findings"])


def test_without_a_gpu(on_a_cpu: dict[str, Any]) -> None:
    assert on_a_cpu["gpu"] == {"calls": 0, "seconds": 0, "top": [], "kinds": [], "parts": []}
    for key in ("gpu_busy", "launch_bound", "model_flops_utilization"):
        assert on_a_cpu[key] is None
    assert on_a_cpu["findings"] == []


def test_text_without_a_terminal_is_plain_and_unbroken(content: dict[str, Any], on_a_cpu: dict[str, Any]) -> None:
    text = shown(content)
    assert "\x1b" not in text
    assert re.search(r"^  total +7 +0\.0006 +100\.0%$", text, re.MULTILINE)
    assert "launch-bound            yes" in text
    assert "-> batching.tokens: 16384" in text
    assert NO_FINDINGS in shown(on_a_cpu)


def shown(content: dict[str, Any]) -> str:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        show(stream, content, [], ["somewhere/profile.json"])
    with os.fdopen(read) as stream:
        return stream.read()


def test_on_a_terminal_there_are_tables(content: dict[str, Any]) -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        writing = Thread(target=show, args=(stream, content, [], ["somewhere/profile.json"]))
        writing.start()
        text = ""
        while "profile.json" not in text:
            text += os.read(controller, 4096).decode()
        writing.join()
    os.close(controller)
    assert "\x1b[1m" in text
    assert "aten::bmm" in text


def test_two_profiles_side_by_side(plan_of: Plans, summary_of: Summaries, content: dict[str, Any]) -> None:
    events = gpu_step()
    events.kernel("new_kernel", 900, 950, 99)
    now = content_of(summary_of(events), plan_of())
    text = plain(list(compare({**content, "path": "a/profile.json"}, now)))
    assert "compared with a/profile.json" in text
    assert re.search(r"other +- +1 +0\.0000 +0\.0001 +\+0\.0001 s", text)
    assert re.search(r"GPU calls +7 +8 +\+14\.3%", text)


def test_a_profile_of_an_older_run_may_lack_what_is_new(content: dict[str, Any]) -> None:
    fixed = {key: content[key] for key in NAMES}
    fixed["cpu"] = {key: content["cpu"][key] for key in ("calls", "seconds", "top")}
    fixed["gpu"] = {key: content["gpu"][key] for key in ("calls", "seconds", "top")}
    assert "step seconds" in plain(list(compare({**fixed, "path": "old"}, content)))


def test_a_profile_is_found_by_its_file_its_folder_and_its_run(content: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run" / "profile"
    folder.mkdir(parents=True)
    document.write(folder / "profile.json", content)
    for path in (folder / "profile.json", folder, tmp_path / "run"):
        assert document.read(path)["path"] == str(folder / "profile.json")
    with pytest.raises(UsageError, match=r"there is no profile\.json"):
        document.read(tmp_path)
    (tmp_path / "profile.json").write_text("[1]")
    with pytest.raises(UsageError, match="not a profile"):
        document.read(tmp_path)


class Page(HTMLParser):
    """Tags that are open, and everything that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1] == tag:
            self.open.pop()


def test_the_page_needs_nothing_else(plan_of: Plans, summary_of: Summaries) -> None:
    events = gpu_step()
    events.kernel("template<int, &more>(const char*)", 900, 950, 7)
    for at in range(5):
        events.memory(100 + 100 * at, 2**30 * at, device_type=1)
    trace = events.trace()
    content = content_of(summary_of(events), plan_of())
    text = page(content, trace, locate(trace), list(compare({**content, "path": "a<b"}, content)))
    parsed = Page()
    parsed.feed(text)
    assert parsed.tags.isdisjoint({"script", "link", "img", "iframe"})
    assert parsed.addresses == []
    assert "<char" not in text
    assert "a&lt;b" in text
    assert "prefers-color-scheme: dark" in text
    assert "Memory over the step" in text
    for kind in ("k-gemm", "k-delta-rule", "k-communication", "k-recomputation", "k-idle"):
        assert f'class="{kind}"' in text, kind
        assert f".{kind}" in text, kind
    assert len(text) < 100_000


def test_long_names_lose_their_middle() -> None:
    name = "void at::native::" + "x" * 300 + "(int)"
    assert len(shortened(name)) == 72
    assert shortened(name).endswith("(int)")
    assert shortened("aten::mm") == "aten::mm"
