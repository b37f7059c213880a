from __future__ import annotations

from typing import Any

import pytest

from sft_cli.cli.bench_text import bench_text


def document(idle_seconds: float | None, **more: Any) -> dict[str, Any]:
    kinds = {"GEMM": 1.5} | ({} if idle_seconds is None else {"idle": idle_seconds})
    rung = {
        "name": "stock", "error": None, "was_finite": True, "tokens_per_second": 100.0, "tokens_per_second_min": 90.0,
        "tokens_per_second_max": 110.0, "ratio": 1.0, "mfu": None, "peak_memory_gib": 1.0, "launches": None,
        "real_share": 0.9, "step_seconds": 2.0, "hours_for_dataset": None, "warm_up_seconds": 1.0,
        "seconds_to_first_step": 9.0, "kinds": kinds, "timed_steps": 3, "warm_up_step_seconds": [2.0],
        **more,
    }  # fmt: skip
    return {"recipe": "r.yaml", "model": "m", "layers": None, "ranks": 1, "device": "GPU", "rungs": [rung]}


@pytest.mark.parametrize(("idle_seconds", "is_told"), [(0.7, True), (0.1, False), (None, False)])
def test_a_rung_that_waited_for_the_host_says_so(idle_seconds: float | None, is_told: bool) -> None:
    line = "stock: for 35% of a step the GPU had nothing to do but wait for the host"
    assert (line in bench_text(document(idle_seconds)).splitlines()) is is_told


@pytest.mark.parametrize(("retries", "told"), [(1, "once"), (4, "4 times"), (0, None), (None, None)])
def test_memory_that_was_given_back_and_asked_for_again_is_told(retries: int | None, told: str | None) -> None:
    lines = [line for line in bench_text(document(None, allocator_retries=retries)).splitlines() if "driver" in line]
    assert [line.partition(" torch had to give ")[0] for line in lines] == ([] if told is None else [f"stock: {told}"])


def test_what_triton_compiled_between_steps_is_named() -> None:
    late = [{"kernel": "_norm", "variants": 1, "seconds": 0.84}, {"kernel": "_conv", "variants": 2, "seconds": 1.2}]
    line = "stock: while steps were taken Triton compiled _norm (0.8 s), _conv (1.2 s)"
    assert line in bench_text(document(None, late_kernels=late)).splitlines()
