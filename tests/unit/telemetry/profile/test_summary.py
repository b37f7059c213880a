"""`gpu_step` says what its numbers are by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.traces import Events, gpu_step

from sft_cli.telemetry.profile.summary import Summary

US = 1e-6


def us(value: float) -> object:
    return pytest.approx(value * US, abs=1e-9)


def test_the_gpus_side(summary_of: Callable[..., Summary]) -> None:
    summary = summary_of()
    assert summary.steps == 1
    assert summary.step_seconds == us(1000)
    assert summary.gpu.calls == 7
    assert summary.gpu.seconds == us(100 + 200 + 50 + 20 + 30 + 100 + 100)
    # 150 to 600 without a gap, then 800 to 900.
    assert summary.gpu_busy_seconds == us(550)
    assert summary.gpu_busy == pytest.approx(0.55)
    seconds = {kind: row.seconds for kind, row in summary.gpu.kinds.items()}
    assert seconds == {
        "GEMM": us(200),
        "delta rule": us(50 + 30),
        "elementwise": us(20),
        "optimizer": us(100),
        "communication": us(200),
    }
    assert summary.recomputation_seconds == us(20)
    assert summary.recompute_share == pytest.approx(20 / 600)


def test_communication_is_exposed_where_nothing_is_computed(summary_of: Callable[..., Summary]) -> None:
    assert summary_of().exposed_communication_seconds == us(50 + 100)


def test_the_hosts_side_is_its_operators_each_without_what_is_inside(summary_of: Callable[..., Summary]) -> None:
    summary = summary_of()
    assert summary.cpu.calls == 9
    # Thread by thread, the time that operators cover.
    assert summary.cpu.seconds == us((40 + 60 + 70 + 40) + (190 + 80))
    assert summary.data_wait_seconds == us(100)


def test_the_host_against_the_gpu(summary_of: Callable[..., Summary]) -> None:
    summary = summary_of()
    launching = summary.launching
    assert launching is not None
    # All but waiting for data and in the synchronising call.
    assert launching.enqueue_seconds == us(1000 - 100 - 300)
    assert summary.gpu_busy_seconds == us(550)
    assert summary.launch_bound
    # 100 to 120 until the first launch (before that it waits for data), and 600 to 680 until that of the update; what
    # comes after a launch is not the host's.
    assert launching.starved_seconds == us(20 + 80)


def test_a_full_queue_is_no_work_of_the_host(summary_of: Callable[..., Summary]) -> None:
    events = Events()
    events.step(3, 0, 10_000)
    for at in range(9):
        events.launch(at + 1, 10 * at, 10 * at + 5)
    events.launch(10, 100, 9_000)
    for at in range(10):
        events.kernel("k", 10 + 900 * at, 10 + 900 * (at + 1), at + 1)
    summary = summary_of(events)
    launching = summary.launching
    assert launching is not None
    assert launching.enqueue_seconds == us(10_000 - (8_900 - 5))
    assert not summary.launch_bound


def test_several_steps_are_a_mean(summary_of: Callable[..., Summary]) -> None:
    events = gpu_step()
    events.step(4, 1000, 2000)
    summary = summary_of(events)
    assert summary.steps == 2
    assert summary.gpu.calls == 3.5
    assert summary.gpu.seconds == us(300)


def test_without_a_gpu(summary_of: Callable[..., Summary]) -> None:
    events = Events()
    events.step(3, 0, 1000)
    events.op("aten::mm", 0, 600)
    events.op("aten::mul", 700, 900)
    events.range("gloo:all_reduce", 550, 750, tid=9)
    summary = summary_of(events)
    assert (summary.gpu.calls, summary.gpu.seconds, summary.gpu.top) == (0, 0, ())
    assert summary.gpu_busy is None
    assert summary.launching is None
    assert summary.kind_share("GEMM") == pytest.approx(0.75)
    assert summary.exposed_communication_seconds == us(100)
