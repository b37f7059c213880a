from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import Line, run_in, step, write_run

from sft_cli.telemetry.report.page import page

EVIL = '<script>alert("1")</script><img src=x onerror=alert(1)>'
VOID = {"meta", "br", "img", "line", "rect", "polyline", "path"}
PLAN = {
    "recipe": {"model": {"path": "builtin:tiny"}, "data": {"train": [{"path": "chats.jsonl"}], "streaming": False}},
    "choices": [{"key": "kernels.loss", "value": "liger", "because": "it is the fastest"}],
    "world": {"ranks": 2, "device": "cuda", "gpu_name": "NVIDIA H200"},
    "memory_gib": {"parameters": 1.5, "total": 4.0},
    "gpu_memory_gib": 9.5,
    "steps": 50,
    "tokens_per_step": 100,
    "micro_batches_per_step": 2,
}
KERNELS = {
    "loss": {"asked": "auto", "got": "liger", "callable": "liger.f", "package": "liger-kernel", "version": "0.8.5"},
    "norm": {
        "asked": "auto", "got": "sftune", "callable": "own.sums", "package": "sftune", "version": "1",
        "beside": [{"callable": "own.heads"}, {"callable": "own.gate"}],
    },
}  # fmt: skip
EXACTNESS = {
    "kinds": [
        {
            "kind": "full_attention", "layers": 4, "output_difference": 1e-7, "output_tolerance": 1e-4,
            "gradient_difference": 2e-3, "gradient_tolerance": 1e-4,
        }
    ],
    "logits_difference": 1e-7, "logits_tolerance": 1e-4, "leak": None,
}  # fmt: skip
SOURCE = {
    "path": "chats.jsonl", "format": "messages", "rows_in": 1200, "rows_out": 1100, "dropped": {"too long": 100},
    "tokens": 99_000, "supervised_tokens": 50_000, "changed": {},
}  # fmt: skip


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps what is in the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        values = dict(attrs)
        assert not [name for name in values if name.startswith("on")]
        self.ids += filter(None, [values.get("id")])
        self.labels += filter(None, [values.get("aria-labelledby")])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert set(reader.labels) <= set(reader.ids)
    assert "://" not in html, "it must need no network"
    return reader


def shown(folder: Path, lines: list[Line], **given: Any) -> tuple[str, str]:
    """The page, and its text alone."""
    html = page(run_in(write_run(folder, lines, **given)))
    return html, " ".join(" ".join(read(html).text).split())


def test_all_of_a_run_is_on_it(tmp_path: Path) -> None:
    lines = [
        *(step(number, gpu_utilization=0.5 + number / 100, gpu_power_w=600) for number in range(1, 51)),
        {"step": 50, "eval_loss": 1.25},
        {"event": "done", "steps": 50, "seconds": 61},
    ]
    _, text = shown(
        tmp_path, lines, plan=PLAN, kernels=KERNELS, exactness=EXACTNESS, data={"train": [SOURCE], "eval": []},
        recipe="model: {path: builtin:tiny}\n",
    )  # fmt: skip
    for part in (
        "done", "builtin:tiny", "steps of 50", "Loss nats a token", "evaluation", "Gradient norm", "Learning rate",
        "Throughput", "Time of a step s", "Real tokens among slots", "Peak memory GiB", "the plan's estimate 4 GiB",
        "GPU utilisation %", "last 100% · lowest 51% at step 1 · highest 100% at step 50", "Throughout: GPU power 600",
        "kernels.loss liger it is the fastest", "2 x NVIDIA H200", "loss auto liger liger.f liger-kernel 0.8.5",
        "norm auto sftune own.sums own.heads own.gate sftune 1",
        "full_attention, 4 layers outputs 1.0e-07", "1,200 1,100 99,000 50,000 left out, too long: 100", "1:01",
        "model: {path: builtin:tiny}", "50 1.2500 lowest",
    ):  # fmt: skip
        assert part in text, part


def test_a_difference_above_its_tolerance_is_told_from_one_below(tmp_path: Path) -> None:
    html, _ = shown(tmp_path, [step(1)], exactness=EXACTNESS)
    assert '<span class="bad">2.0e-03</span>' in html
    assert '<span class="good">1.0e-07</span>' in html
    leaking, _ = shown(tmp_path, [step(1)], exactness={**EXACTNESS, "leak": "samples leak"})
    assert "Passed" not in leaking
    assert '<p class="bad">samples leak</p>' in leaking


@pytest.mark.parametrize("lines", [[], [step(1)], [{"step": 0, "eval_loss": 3.0}], ["{"], [{"event": "done"}]])
def test_a_folder_with_little_in_it(tmp_path: Path, lines: list[Line]) -> None:
    read(page(run_in(write_run(tmp_path, lines))))


def test_a_failed_run_says_why_at_the_top(tmp_path: Path) -> None:
    failed = {"event": "failed", "what": "the disk is full", "where": "/runs", "fix": "Free some.", "exit_code": 5}
    _, text = shown(tmp_path, [step(1)], events=[failed])
    assert "failed as of" not in text
    assert text.index("/runs the disk is full Free some.") < text.index("Learning rate")


def test_what_comes_from_files_is_escaped(tmp_path: Path) -> None:
    def evil(value: Any) -> Any:
        """With markup in every text, keys included."""
        if isinstance(value, dict):
            return {f"{key}{EVIL}" if key in ("loss", "parameters") else key: evil(item) for key, item in value.items()}
        if isinstance(value, list):
            return [evil(item) for item in value]
        return value + EVIL if isinstance(value, str) else value

    folder = tmp_path / f"run {EVIL.replace('/', '')}"
    lines: list[Line] = [step(1, **{f"odd{EVIL}": 1.5, f"word{EVIL}": [EVIL]}), step(2, **{f"odd{EVIL}": 2.5})]
    events = [{"event": "failed", "what": EVIL, "where": EVIL, "fix": EVIL}, {"event": EVIL, "time": EVIL, "x": EVIL}]
    html = page(
        run_in(
            write_run(
                folder, lines, events, EVIL, plan=evil(PLAN), kernels=evil(KERNELS), exactness=evil(EXACTNESS),
                data=evil({"train": [{**SOURCE, "dropped": {EVIL: 1}}]}),
            )
        )
    )  # fmt: skip
    reader = read(html)
    assert reader.tags["script"] == 1
    assert reader.tags["img"] == 0
    assert "".join(reader.text).count("<img src=x") > 15, "it is shown as text"


def test_files_of_another_kind_are_no_obstacle(tmp_path: Path) -> None:
    odd: list[Any] = [
        [],
        "x",
        5,
        {"choices": 5, "memory_gib": [], "world": "x", "recipe": [], "model": 1, "kinds": [1]},
    ]
    for document in odd:
        names = dict.fromkeys(("plan", "kernels", "exactness", "data"), document)
        read(page(run_in(write_run(tmp_path, [step(1)], **names))))


def test_many_steps_give_a_page_of_sane_size(tmp_path: Path) -> None:
    """Of a tenth of the steps that the issue names, the same size to a few percent: charts hold two points a column."""
    sizes = []
    for count in (2_000, 10_000):
        lines: list[Line] = [
            step(number, loss=1 + number % 7 / 10, grad_norm=90.0 if number == count - 33 else 1.0)
            for number in range(1, count + 1)
        ]
        html = page(run_in(write_run(tmp_path, lines)))
        assert f"highest 90 at step {count - 33:,}" in html
        assert re.search(rf'data-x="[^"]*\b{count - 33}\b', html), "a spike is drawn"
        sizes.append(len(html))
    assert sizes[1] < 1.2 * sizes[0]
    assert sizes[1] < 400_000


def test_its_only_script_is_named_by_its_policy(tmp_path: Path) -> None:
    html, _ = shown(tmp_path, [step(1)])
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in html
