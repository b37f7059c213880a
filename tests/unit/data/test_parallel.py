"""Forked processes: results in order, errors as they are in one process, and nothing left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sft_cli.data import blocks
from sft_cli.data.parallel import ordered_map
from sft_cli.data.prepare import PreparedData, prepare
from sft_cli.errors import DataError, SftError


def slow_first(number: int) -> tuple[int, int]:
    time.sleep(0.2 if number == 0 else 0.0)
    return number, os.getpid()


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_results_keep_the_order_whatever_the_processes_take(processes: int) -> None:
    found = list(ordered_map(slow_first, iter(range(40)), processes))
    assert [number for number, _ in found] == list(range(40))
    assert len({pid for _, pid in found} - {os.getpid()}) == processes
    assert multiprocessing.active_children() == []


def test_no_items_start_no_process() -> None:
    assert list(ordered_map(slow_first, iter([]), 4)) == []


def test_results_larger_than_a_pipe_holds() -> None:
    found = list(ordered_map(lambda size: b"x" * size, iter([10_000_000] * 6), 2))
    assert [len(result) for result in found] == [10_000_000] * 6


def test_items_are_read_only_so_far_ahead() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            read.append(number)
            yield number

    results = ordered_map(slow_first, items(), 2)
    next(results)
    assert len(read) <= 5
    results.close()
    assert multiprocessing.active_children() == []


def refuse(number: int) -> int:
    if number in (3, 7):
        raise DataError("a bad row", where=f"chat.jsonl:{number}", fix="Mend it.")
    time.sleep(0.1 if number == 2 else 0.0)
    return number


def test_the_first_error_is_the_one_of_the_first_item_and_keeps_place_and_remedy() -> None:
    results = ordered_map(refuse, iter(range(10)), 4)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="a bad row") as caught:
        next(results)
    assert (caught.value.where, caught.value.fix, caught.value.exit_code) == ("chat.jsonl:3", "Mend it.", 3)
    assert "refuse" in caught.value.__notes__[0]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("breaks_at", "first"), [(3, "a bad row"), (2, "cut off"), (0, "cut off")])
def test_an_error_of_reading_comes_in_its_turn(breaks_at: int, first: str) -> None:
    def items() -> Iterator[int]:
        yield from range(breaks_at + 1 if breaks_at == 3 else breaks_at)
        raise DataError("cut off", where="chat.jsonl")

    with pytest.raises(DataError, match=first):
        list(ordered_map(refuse, items(), 4))


def test_a_process_that_is_ended_from_outside_is_an_error() -> None:
    def end(number: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return number

    with pytest.raises(SftError, match=r"ended from outside \(exit code -9\)"):
        list(ordered_map(end, iter(range(4)), 2))


def test_a_process_that_is_ended_while_it_waits_is_the_same_error() -> None:
    def items() -> Iterator[int]:
        yield 1
        (idle,) = multiprocessing.active_children()
        assert idle.pid is not None
        os.kill(idle.pid, signal.SIGKILL)
        os.waitid(os.P_PID, idle.pid, os.WEXITED | os.WNOWAIT)
        yield 2

    with pytest.raises(SftError, match=r"ended from outside \(exit code -9\)"):
        list(ordered_map(slow_first, items(), 1))


class TwoParts(Exception):
    """Can be pickled, but not be made anew of what was."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def test_an_error_that_can_not_be_carried_over_is_told_all_the_same() -> None:
    def fail(number: int) -> int:
        raise TwoParts("the real", "cause")

    with pytest.raises(RuntimeError, match="the real cause") as caught:
        list(ordered_map(fail, iter([0]), 1))
    assert "TwoParts" in caught.value.__notes__[0]


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
import os, sys, time
from sft_cli.data.parallel import ordered_map
def work(number):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(3 if number else 0)
list(ordered_map(work, iter(range(4)), 2))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("whole_group", [True, False], ids=["as Ctrl-C does", "the parent alone"])
def test_no_process_outlives_its_parent(number: signal.Signals, whole_group: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    forks = {int(process.stdout.readline()) for _ in range(3)}
    (os.killpg if whole_group and number != signal.SIGKILL else os.kill)(process.pid, number)
    _, errors = process.communicate(timeout=20)  # comes back when the last fork has ended and so closed its pipes
    assert len(forks) == 2
    assert errors.count("Traceback") == (number == signal.SIGINT)


def same(one: PreparedData, other: PreparedData) -> bool:
    arrays = ("token_ids", "supervised", "offsets", "source_of_row")
    return one.report == other.report and all(
        np.array_equal(getattr(one.train, name), getattr(other.train, name)) for name in arrays
    )


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS_ALONE", blocks.BLOCK_ROWS)
    monkeypatch.setattr(blocks, "usable_cores", lambda: 3)


def chat(number: int) -> Any:
    if number % 10 == 3:
        return {"messages": [{"role": "user", "content": "alone"}]}
    if number % 10 == 7:
        return "{not JSON"
    shape = [{"role": "user", "content": str(number)}, {"role": "assistant", "content": "Yes. " * (number % 23)}]
    if number % 2:
        return {"messages": shape}
    return {"conversations": [{"from": turn["role"], "value": turn["content"]} for turn in shape]}


def test_forks_make_the_same_arrays_and_the_same_report(make_plan, write_rows, tmp_path: Path, forked) -> None:
    files = [str(write_rows([chat(n) for n in range(rows)], name=f"{rows}.jsonl")) for rows in (900, 40, 1300)]
    plans = [
        make_plan(data={"train": files, "bad_rows": "skip", "cache_dir": str(tmp_path / name)}) for name in ("a", "b")
    ]
    parallel = prepare(plans[0], progress=False)
    before = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "ordered_map", lambda *_: pytest.fail("one core needs no fork"))
        patch.setattr(blocks, "usable_cores", lambda: 1)
        alone = prepare(plans[1], progress=False)
    assert same(parallel, alone)
    assert parallel.report.train[0].format == "messages+sharegpt"
    assert os.environ == before


def test_a_bad_row_far_into_a_file_is_told_as_ever(make_plan, write_rows, tmp_path: Path, forked) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2000
    bad = [*rows[:900], "{", *rows[901:1300], {"messages": []}, *rows[1301:]]
    file = write_rows(bad)
    with pytest.raises(DataError, match="not JSON") as caught:
        prepare(make_plan(data={"train": str(file)}), progress=False)
    assert caught.value.where == f"{file}:901"
    assert list((tmp_path / "cache").iterdir()) == []
    assert multiprocessing.active_children() == []


def test_a_loop_in_a_template_ends_in_a_fork_too(make_plan, write_rows, monkeypatch, tmp_path: Path, forked) -> None:
    from support import chat_templates as templates

    monkeypatch.setattr("sft_cli.data.render_limits.SECONDS", 0.2)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = tmp_path / "t.jinja"
    template.write_text("{% if messages[0].content == 'now' %}" + loop + "{% endif %}" + templates.CHATML)
    rows = [json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})] * 600
    rows[400] = rows[400].replace('"a"', '"now"')
    file = write_rows(rows)
    with pytest.raises(DataError, match="it takes more than") as caught:
        prepare(make_plan(data={"train": str(file)}, model={"chat_template": str(template)}), progress=False)
    assert caught.value.where == f"{file}:401"
