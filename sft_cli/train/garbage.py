"""Python's garbage collector, held still while steps are taken.

Left to itself it looks through every object of torch, transformers and compilers each few steps: for 0.2 s in a run on
a CPU, longer where more is imported, in the middle of a step, with the GPU waiting, and on each rank at another moment.
What is there when training begins stays, and needs no looking at; of what steps leave, nearly all goes without it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

STEPS_BETWEEN_COLLECTIONS = 20


@contextmanager
def held_still() -> Iterator[None]:
    """Inside, nothing is collected but by `collect_after`, and that looks at what came since only."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def collect_after(step: int) -> None:
    """Collects after each twentieth step, so on all ranks at once; nothing where the collector isn't held still."""
    if step % STEPS_BETWEEN_COLLECTIONS == 0 and not gc.isenabled():
        gc.collect()
