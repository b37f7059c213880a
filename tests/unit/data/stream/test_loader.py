"""Steps of one rank through the process that reads: exact, resumable, with errors where they belong."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from sft_cli.data.loader import Loader, StepBatches
from sft_cli.data.prepare import prepare
from sft_cli.data.stream import reader as reader_module
from sft_cli.data.stream.loader import StreamLoader
from sft_cli.data.stream.reader import open_reader
from sft_cli.errors import DataError, SftError

TRAIN = {"tokens_per_step": 1024, "max_steps": 30, "epochs": 3}
BATCHING = {"tokens": 256}


def chats(rows: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": f"{number} " * (number % 9)}]}
        for number in range(1, rows + 1)
    ]


@contextmanager
def loading(plan, rank: int = 0) -> Iterator[StreamLoader]:
    with open_reader(plan, rank) as reader:
        yield StreamLoader(reader, plan)


def taken(plan, rank: int = 0, start: int = 0) -> list[StepBatches]:
    with loading(plan, rank) as loader:
        return list(loader.steps(start))


def assert_same(one: list[StepBatches], other: list[StepBatches]) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a.step, a.is_last, len(a.micro_batches)) == (b.step, b.is_last, len(b.micro_batches))
        for x, y in zip(a.micro_batches, b.micro_batches, strict=True):
            assert torch.equal(x.input_ids, y.input_ids)
            assert torch.equal(x.targets, y.targets)


@pytest.mark.parametrize("mode", ["packing", "padding"])
def test_a_set_that_fits_a_window_trains_as_without_streaming(make_plan, write_rows, mode: str) -> None:
    data = {"train": str(write_rows(chats(400)))}
    batching = {**BATCHING, "mode": mode}
    for rank in (0, 1):
        streamed = taken(make_plan(ranks=2, data={**data, "streaming": True}, batching=batching, train=TRAIN), rank)
        plan = make_plan(ranks=2, data=data, batching=batching, train=TRAIN)
        kept = list(Loader(prepare(plan, progress=False).train, plan, rank).steps())
        assert len(kept) == 30
        assert_same(streamed, kept)


def test_starting_later_gives_the_steps_of_an_unbroken_run(make_plan, write_rows, monkeypatch) -> None:
    monkeypatch.setattr("sft_cli.data.stream.windows.WINDOW_ROWS", 50)
    monkeypatch.setattr("sft_cli.data.stream.windows._FEWEST_PACKS", 1)
    plan = make_plan(
        ranks=2, data={"train": str(write_rows(chats(400))), "streaming": True}, batching=BATCHING, train=TRAIN
    )
    unbroken = taken(plan, 1)
    assert [step.step for step in unbroken] == list(range(1, 31))
    for start in (0, 1, 7, 29, 30):
        resumed = taken(plan, 1, start)
        assert_same(resumed, unbroken[start:])
        assert [step.epoch for step in resumed] == [step.epoch for step in unbroken[start:]], start


def test_a_stream_that_ends_before_max_steps_says_so(make_plan, write_rows) -> None:
    rows: list[Any] = [*chats(40), "{"]
    data = {"train": str(write_rows(rows)), "streaming": True, "bad_rows": "skip"}
    plan = make_plan(data=data, batching=BATCHING, train={**TRAIN, "epochs": 2})
    with loading(plan) as loader:
        steps = list(loader.steps())
        assert loader.total_steps == 30
        assert len(steps) < 30
        assert [step.is_last for step in steps] == [False] * (len(steps) - 1) + [True]
        assert steps[-1].epoch == 2.0
        left_out, ended = loader.remarks(is_over=True)
    assert left_out.endswith("chat.jsonl: 1 of 41 rows read were left out (not JSON: 1)")
    assert ended.startswith(f"the stream ended after {len(steps)} of 30 steps: it was read 2 times")


def test_a_bad_row_ends_the_run_where_it_stands(make_plan, write_rows, monkeypatch) -> None:
    monkeypatch.setattr("sft_cli.data.stream.windows.WINDOW_ROWS", 50)
    monkeypatch.setattr("sft_cli.data.stream.windows._FEWEST_PACKS", 1)
    path = write_rows([*chats(300), "{", *chats(300)])
    plan = make_plan(data={"train": str(path), "streaming": True}, batching=BATCHING, train=TRAIN)
    with loading(plan) as loader:
        steps = loader.steps()
        assert next(steps).step == 1
        with pytest.raises(DataError) as raised:
            list(steps)
    assert raised.value.where == f"{path}:301"


def test_the_heaviest_step_has_as_many_slots_as_any(make_plan, write_rows) -> None:
    data = {"train": str(write_rows(chats(100))), "streaming": True}
    for mode in ("packing", "padding"):
        plan = make_plan(data=data, batching={**BATCHING, "mode": mode}, train=TRAIN)
        with loading(plan) as loader:
            assert loader.heaviest_micro_batch().slots == 256
            heaviest = loader.heaviest_step()
            assert [batch.slots for batch in heaviest.micro_batches] == [256] * 4
            assert all(batch.supervised_tokens for batch in heaviest.micro_batches)
            steps = list(loader.steps())
        assert [step.step for step in steps] == list(range(1, len(steps) + 1)), "looking at it took nothing away"


def test_a_reader_that_is_killed_is_an_error_and_no_hang(make_plan, write_rows, monkeypatch) -> None:
    plan = make_plan(data={"train": str(write_rows(chats(400))), "streaming": True}, batching=BATCHING, train=TRAIN)

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(reader_module, "Stream", die)
    with loading(plan) as loader, pytest.raises(SftError, match=r"ended from outside \(exit code -9\)"):
        next(loader.steps())


def test_a_reader_that_is_killed_while_the_model_is_built_is_told_the_same(make_plan, write_rows) -> None:
    plan = make_plan(data={"train": str(write_rows(chats(400))), "streaming": True}, batching=BATCHING, train=TRAIN)
    with open_reader(plan, 0) as reader:
        reader.first()
        reader._process.kill()
        reader._process.join()
        with pytest.raises(SftError, match=r"ended from outside \(exit code -9\)"):
            list(reader.steps(0))


def test_the_reader_is_gone_when_its_block_ends(make_plan, write_rows) -> None:
    train = {**TRAIN, "epochs": 10**6, "max_steps": 10**6}
    plan = make_plan(data={"train": str(write_rows(chats(50))), "streaming": True}, batching=BATCHING, train=train)
    with open_reader(plan, 0) as reader:
        assert next(reader.steps(0)).step == 1
        pid = reader._process.pid
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
