"""What is said of ranks, and how often."""

from __future__ import annotations

from sft_cli.telemetry.health import ECC_ERRORS, QUIET_SECONDS, HealthWatch, Place
from sft_cli.telemetry.rank_watch import RankWatch
from sft_cli.telemetry.slow_ranks import WINDOW_STEPS, Slowest, SlowRanks

ONE_NODE = Place(ranks=4, ranks_per_node=4)
HOT = 0x40


def test_trouble_is_said_once_and_again_when_it_was_over() -> None:
    watch = HealthWatch(ONE_NODE)
    said = list(watch.notices([0, HOT, 0, 0], 0.0))
    assert len(said) == 1
    assert said[0].startswith("WARNING: the GPU of rank 1 is slowed down because it is too hot")
    for second in range(1, 100):
        assert list(watch.notices([0, HOT * (second % 3 == 0), 0, 0], float(second))) == [], "flickering is one trouble"
    assert list(watch.notices([0, 0, 0, 0], 99 + QUIET_SECONDS - 1)) == []
    (over,) = watch.notices([0, 0, 0, 0], 99 + QUIET_SECONDS + 1)
    assert over.startswith("no longer: the GPU of rank 1")
    assert list(watch.notices([0, 0, 0, 0], 1000.0)) == []
    assert list(watch.notices([0, HOT, 0, 0], 1001.0)) == said


def test_every_trouble_of_every_rank_has_a_line() -> None:
    watch = HealthWatch(Place(ranks=4, ranks_per_node=2))
    said = list(watch.notices([HOT | 0x80, 0, 0, ECC_ERRORS], 0.0))
    assert [line.split(" is ")[0].split(" has ")[0] for line in said] == [
        "WARNING: the GPU of rank 0 (GPU 0 of node 0)",
        "WARNING: the GPU of rank 0 (GPU 0 of node 0)",
        "WARNING: the GPU of rank 3 (GPU 1 of node 1)",
    ]
    assert list(watch.notices([0, 0, 0, HOT], 1.0)) != [], "another trouble of the same rank"


def test_counted_errors_are_never_over() -> None:
    watch = HealthWatch(ONE_NODE)
    assert len(list(watch.notices([ECC_ERRORS, 0, 0, 0], 0.0))) == 1
    assert list(watch.notices([0, 0, 0, 0], 1e6)) == []
    assert list(watch.notices([ECC_ERRORS, 0, 0, 0], 2e6)) == []


def told(watch: SlowRanks, of_ranks: list[int], steps: int = WINDOW_STEPS) -> list[str]:
    return [line for _ in range(steps) for line in watch.notices(of_ranks)]


def test_a_rank_that_is_slower_by_a_tenth_and_more() -> None:
    watch = SlowRanks(ONE_NODE)
    assert told(watch, [100, 101, 125, 99], WINDOW_STEPS - 1) == []
    assert watch.slowest is None
    (said,) = told(watch, [100, 101, 125, 99], 1)
    assert said.startswith("WARNING: rank 2 computes 25% slower than the others")
    assert watch.slowest == Slowest(2, 0.25)
    assert told(watch, [100, 101, 125, 99], 5 * WINDOW_STEPS) == [], "said already"
    assert told(watch, [100, 101, 108, 99]) == [], "too close to the limit to say that it is over"
    assert told(watch, [100, 101, 102, 99]) == ["no longer: rank 2 computes slower than the others"]
    assert len(told(watch, [100, 101, 125, 99])) == 1


def test_less_than_a_tenth_is_no_news() -> None:
    assert told(SlowRanks(ONE_NODE), [100, 109, 95, 100]) == []


def test_of_two_ranks_the_other_is_the_measure() -> None:
    (said,) = told(SlowRanks(Place(2, 2)), [100, 150])
    assert "rank 1 computes 50% slower" in said


def test_single_steps_do_not_count() -> None:
    """A host that is interrupted now and then, or a step that compiles."""
    watch = SlowRanks(ONE_NODE)
    said = [line for step in range(200) for line in watch.notices([100, 100, 5000 if step % 3 == 0 else 100, 100])]
    assert said == []


def test_steps_that_a_rank_has_no_time_of_are_left_out() -> None:
    watch = SlowRanks(Place(2, 2))
    assert told(watch, [0, 150], 3 * WINDOW_STEPS) == []
    assert watch.slowest is None


def test_a_rank_alone_is_never_slow() -> None:
    watch = RankWatch(Place(1, 1), clock=lambda: 0.0)
    assert [line for _ in range(50) for line in watch.notices([100], [0])] == []
    assert len(list(watch.notices([100], [HOT]))) == 1
    assert watch.slowest is None
