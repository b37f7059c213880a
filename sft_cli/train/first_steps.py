"""The first steps of a run, for a profile or a bench, which train nothing that is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat

from sft_cli.data.loader import StepBatches
from sft_cli.data.prefetch import prefetched
from sft_cli.errors import DataError


def first_steps(steps: Callable[[], Iterator[StepBatches]], count: int, *, come_again: bool) -> Iterator[StepBatches]:
    """`count` of them, fetched ahead.

    Args:
        steps: the run's, from its first.
        come_again: whether they may be asked for again, where they are too few; not those of a stream.
    """
    rounds = repeat(steps) if come_again else [steps]
    return islice(prefetched(chain.from_iterable(of_round() for of_round in rounds)), count)


def too_few(found: int, wanted: int, what: str) -> DataError:
    """A stream that has ended before its time.

    Args:
        what: takes so many.
    """
    return DataError(
        f"the stream has {found} steps, and {what} takes {wanted}",
        where="data.streaming",
        fix="Write `streaming: false`, or ask for fewer --steps.",
    )
