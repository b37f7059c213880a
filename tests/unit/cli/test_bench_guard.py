from __future__ import annotations

from sft_cli.cli.bench_guard import falls, most_grown


def test_what_has_grown_most_is_named_by_seconds_not_by_share() -> None:
    assert most_grown({"GEMM": 2.0, "norm": 0.01}, {"GEMM": 2.2, "norm": 0.03}) == "GEMM"
    assert most_grown({"GEMM": 2.0}, {"GEMM": 1.9, "idle": 0.5}) == "idle"
    assert most_grown({"GEMM": 2.0}, {"GEMM": 2.0}) is None
    assert most_grown({}, {}) is None


def entry(name: str, rate: float | None, **kinds: float) -> dict[str, object]:
    return {"name": name, "tokens_per_second": rate, "kinds": kinds}


def test_a_fall_is_one_by_more_than_the_tolerance() -> None:
    saved = {"rungs": [entry("a", 100.0, GEMM=1.0), entry("b", 100.0), entry("c", None), entry("d", 100.0)]}
    now = [entry("a", 94.9, GEMM=1.1), entry("b", 95.0), entry("c", 1.0), entry("d", None), entry("e", 1.0)]
    (line,) = falls(saved, now, 0.05)
    assert line.startswith("a: 95 tokens a second, 5.1% fewer than the 100 before")
    (line,) = falls({"rungs": [entry("a", 100.0)]}, [entry("a", 10.0)], 0.05)
    assert line.endswith("no kind of work of the profiled step has grown")


def test_of_an_anchor_and_a_rung_of_its_name_the_rung_counts() -> None:
    saved = {"rungs": [entry("a", 100.0)]}
    assert falls(saved, [entry("a", 50.0), entry("a", 100.0)], 0.05) == []
    assert len(falls(saved, [entry("a", 100.0), entry("a", 50.0)], 0.05)) == 1
