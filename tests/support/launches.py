"""A process of its own: which variants of sftune's Triton kernels a step of a small model launches, and which of them
are compiled ahead; as JSON. Nothing is launched, and no GPU needed: numbers are whatever memory held.

Written for `tests/unit/kernels/test_prewarm_own.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from sft_cli.data.batch import pack_rows, pad_rows
from sft_cli.kernels.prewarm.request import Request, Task
from sft_cli.kernels.prewarm.share import compile_share
from sft_cli.model.families import FAMILIES
from sft_cli.plan.architecture import read_architecture
from sft_cli.plan.kernel_shapes import plain_layers_of, shapes_of, slots_of
from support.ahead import TARGET
from support.models import CONFIGS, REFERENCES, WORDS, make_model
from support.rows import random_rows

LENGTHS = [9, 2, 23]
OWN = {"norm": "sftune", "conv": "sftune"}
SHARES = 3


def variants(run: Callable[[], None]) -> list[str]:
    """What Triton would compile: kernel, arguments as it specialises them, options."""
    told: set[str] = set()
    backend = make_backend(TARGET)

    def note(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        bind = create_function_from_signature(self.signature, self.params, backend)
        _, specialised, rest = bind(*arguments, **options)
        told.add(f"{self.__name__} {specialised} {rest}")

    JITFunction.run = note  # type: ignore[method-assign]
    run()
    return sorted(told)


def step(family: str, dtype: torch.dtype, weights: torch.dtype, mode: str) -> None:
    """Forward and backward."""
    model = make_model(family, kernels=REFERENCES.model_copy(update=OWN), master_dtype=weights, compute_dtype=weights)
    rows, order = random_rows(LENGTHS, words=WORDS), list(range(len(LENGTHS)))
    batch = pack_rows(rows, order, 40) if mode == "packing" else pad_rows(rows, order)
    with torch.autocast("cpu", dtype) if weights != dtype else nullcontext():
        loss = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
    loss.backward()


def ahead(family: str, dtype: str, weights: str, mode: str) -> None:
    """All shares of a prewarm, as a run asks for it."""
    config, facts = CONFIGS[family], FAMILIES[family]
    shape = read_architecture(config)
    request = Request(
        shapes=shapes_of(shape, dtype, 64),
        backends={slot: word for slot, word in OWN.items() if slot in slots_of(shape, config)},
        plain=plain_layers_of(shape, config, facts.norm_offset, weights) if facts.is_plain else None,
        is_padded=mode == "padding",
        gpu="NVIDIA H200, 9.0",
    )
    for share in range(SHARES):
        task = Task(request=request, share=share, shares=SHARES, device_index=0)
        compile_share(task, torch.device("cpu"), lambda name: None)


def main() -> None:
    """Of a family, a compute dtype, the dtype of the parameters that layers see, and packing or padding."""
    family, dtype, weights, mode = sys.argv[1:]
    compute, seen = (getattr(torch, name) for name in (dtype, weights))
    found = {
        "step": variants(lambda: step(family, compute, seen, mode)),
        "ahead": variants(lambda: ahead(family, dtype, weights, mode)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
