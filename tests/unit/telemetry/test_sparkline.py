from __future__ import annotations

import math

import pytest

from sft_cli.telemetry.sparkline import Course, sparkline


def course_of(values: list[float]) -> Course:
    course = Course()
    for value in values:
        course = course.plus(value)
    return course


def test_levels() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([8, 8, 0, 0], 2) == "█▁"
    assert sparkline([5, 5, 5], 10) == "▁▁▁"
    assert sparkline([5], 10) == sparkline([], 10) == sparkline([1, 2], 0) == ""


def test_a_course_is_bounded_and_of_the_whole_run() -> None:
    course = course_of([float(at) for at in range(100_000)])
    assert 128 <= len(course.means) <= 256
    assert course.means[0] < 500
    assert course.means[-1] > 98_000
    differences = [after - before for before, after in zip(course.means, course.means[1:], strict=False)]
    assert differences == pytest.approx([differences[0]] * len(differences))


def test_what_is_no_number_is_left_out() -> None:
    assert course_of([1.0, math.nan, math.inf, 2.0]).means == (1.0, 2.0)
