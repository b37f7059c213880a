from __future__ import annotations

from itertools import pairwise

import pytest

from sft_cli.optim.schedule import learning_rate_ratio, warmup_steps
from sft_cli.recipe.schema import ScheduleSection


def ratios(total: int, **options: object) -> list[float]:
    schedule = ScheduleSection.model_validate(options)
    return [learning_rate_ratio(schedule, step, total) for step in range(1, total + 1)]


@pytest.mark.parametrize(("warmup", "total", "steps"), [(0.03, 1000, 30), (0.03, 10, 0), (7.0, 10, 7), (0.0, 10, 0)])
def test_warmup_is_steps_or_a_fraction(warmup: float, total: int, steps: int) -> None:
    assert warmup_steps(ScheduleSection(warmup=warmup), total) == steps


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "wsd"])
def test_warmup_rises_to_the_peak_at_its_last_step(name: str) -> None:
    assert ratios(100, name=name, warmup=4.0)[:4] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize("total", [1, 2, 5, 400])
def test_last_step_has_the_least_rate(name: str, total: int) -> None:
    assert ratios(total, name=name, warmup=0.0, min_ratio=0.1)[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "wsd"])
def test_never_rises_after_warmup(name: str) -> None:
    after = ratios(200, name=name, warmup=10.0)[9:]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(after))


def test_cosine_is_half_way_down_in_the_middle() -> None:
    assert ratios(100, name="cosine", warmup=0.0, min_ratio=0.0)[49] == pytest.approx(0.5)


def test_wsd_holds_the_peak_for_nine_tenths() -> None:
    values = ratios(100, name="wsd", warmup=5.0)
    assert values[4:90] == [1.0] * 86
    assert values[90] < 1


def test_warmup_as_long_as_the_run_never_falls() -> None:
    assert ratios(4, name="cosine", warmup=4.0) == [0.25, 0.5, 0.75, 1.0]
