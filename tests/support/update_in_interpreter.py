"""A process of its own, told TRITON_INTERPRET=1: the optimizer's kernel against the CPU's code, as JSON.

Written for `tests/unit/optim/test_update_triton.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from torch import Tensor

from sft_cli.optim.partial_sums import PartialSums
from sft_cli.optim.update import Slice, update_on_host
from sft_cli.optim.update_many_triton import update_many_on_device
from sft_cli.optim.update_triton import programs, update_on_device
from support.tensors import largest

BLOCKS = {"256": 256, "64": 64, "no": None}
STEPS = 4


def new_slice(block: int | None, dtype: torch.dtype, is_stochastic: bool, count: int, first: int) -> Slice:
    """Weights as they begin, moments of zero."""
    weights = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype)
    moments = (torch.zeros(count), torch.zeros(count))
    scales = None
    if block is not None:
        moments = (torch.zeros(count, dtype=torch.int8), torch.zeros(count, dtype=torch.uint8))
        scales = (torch.zeros(count // block), torch.zeros(count // block))
    return Slice(
        weights, weights, moments, scales, block, torch.zeros(()), torch.zeros(()), torch.zeros(()),
        1e-2, 0.1, (0.9, 0.95), 1e-8, 12345, is_stochastic, first,
    )  # fmt: skip


def copy(work: Slice) -> Slice:
    """With tensors of its own."""
    scales = None if work.scales is None else tuple(scale.clone() for scale in work.scales)
    moments = tuple(moment.clone() for moment in work.moments)
    return replace(work, weights=work.weights.clone(), moments=moments, scales=scales, next_step=torch.zeros(()))


def worst(found: Tensor, expected: Tensor) -> float:
    """Of all numbers, relative to a hundredth or more."""
    return float(((found.double() - expected.double()).abs() / expected.double().abs().clamp_min(1e-2)).max())


def run(name: str, dtype: torch.dtype, is_stochastic: bool) -> dict[str, float]:
    """What differs after each of some steps that begin from the same state; the third is bad and changes nothing."""
    block = BLOCKS[name]
    host = new_slice(block, dtype, is_stochastic, count=3072 + 256, first=2**32 - 1000)
    found = {"weights": 0.0, "codes": 0.0, "scales": 0.0, "changed by a bad step": 0.0, "steps": 0.0, "squares": 0.0}
    for step in range(1, STEPS + 1):
        generator = torch.Generator().manual_seed(step)
        gradient = torch.randn(host.weights.shape, generator=generator).mul(step).to(dtype)
        gradient[:300] *= 1e-9  # a block of nearly nothing, and a part of the next
        work = replace(host, gradient=gradient, step=torch.tensor(step - 1.0), is_bad=torch.tensor(float(step == 3)))
        device = copy(work)
        before = copy(work)
        update_on_host(work)
        squares = torch.full((programs(len(gradient)),), float("nan"))
        update_on_device(device, squares)
        found["steps"] += abs(float(device.next_step) - (step - (step == 3)))
        square = 0 if step == 3 else float(gradient.double().square().sum())
        found["squares"] = largest([found["squares"], abs(float(squares.sum()) - square) / max(square, 1)])
        found["weights"] = largest([found["weights"], worst(device.weights, work.weights)])
        for one, other in zip(device.moments, work.moments, strict=True):
            if block is None:
                found["scales"] = largest([found["scales"], worst(one, other)])
            else:
                found["codes"] += float((one != other).sum())
        for one, other in zip(device.scales or (), work.scales or (), strict=True):
            found["scales"] = largest([found["scales"], worst(one, other)])
        if step == 3:
            after, kept = ([each.weights, *each.moments, *(each.scales or ())] for each in (device, before))
            found["changed by a bad step"] = float(
                sum(not torch.equal(*pair) for pair in zip(after, kept, strict=True))
            )
    return found | spoilt(host, block or 256)


def spoilt(host: Slice, block: int) -> dict[str, float]:
    """What becomes of a gradient with numbers that are not finite: how many numbers of their blocks have changed, how
    many of the others have not become what they would have without, and how many sums are not finite, of two."""
    gradient = torch.randn(host.weights.shape, generator=torch.Generator().manual_seed(9)).to(host.weights.dtype)
    good, bad = (copy(replace(host, gradient=one)) for one in (gradient, gradient.clone()))
    bad.gradient[3 * block + 5] = float("nan")
    bad.gradient[-1] = float("inf")
    squares = torch.zeros(programs(len(gradient)))
    update_on_device(good, torch.zeros_like(squares))
    update_on_device(bad, squares)
    is_spoilt = torch.zeros(len(gradient), dtype=torch.bool)
    is_spoilt[3 * block : 4 * block] = is_spoilt[-block:] = True
    pairs = zip(*([each.weights, *each.moments] for each in (host, good, bad)), strict=True)
    wrong = [((now != before) & is_spoilt).sum() + ((now != right) & ~is_spoilt).sum() for before, right, now in pairs]
    if host.scales is not None:
        blocks = is_spoilt.view(-1, block)[:, 0]
        scales = zip(*(each.scales for each in (host, good, bad)), strict=True)  # type: ignore[arg-type]
        wrong += [((now != before) & blocks).sum() + ((now != right) & ~blocks).sum() for before, right, now in scales]
    return {"wrong where spoilt": float(sum(wrong)), "bad sums": float((~squares.isfinite()).sum())}


def together() -> dict[str, float]:
    """Small tensors of every kind, updated in few launches and one by one: how many numbers differ, and the squares."""
    works = [
        replace(new_slice(block, dtype, by_chance, count, first), weight_decay=decay, key=number)
        for number, (block, dtype, by_chance, count, first, decay) in enumerate(
            [
                (None, torch.float32, False, 48, 0, 0.0),
                (None, torch.bfloat16, True, 5120, 0, 0.0),
                (256, torch.bfloat16, True, 256 * 9, 2**32 - 1000, 0.1),
                (None, torch.bfloat16, True, 128, 0, 0.0),
                (64, torch.bfloat16, True, 64, 640, 0.1),
                (256, torch.bfloat16, True, 256 * 3, 0, 0.1),
                (256, torch.bfloat16, True, 0, 0, 0.1),
            ]
        )
    ]
    # One that differs in what the kernel takes once a launch.
    works += [
        replace(copy(works[0]), learning_rate=0.5),
        replace(copy(works[0]), betas=(0.5, 0.95)),
        replace(copy(works[0]), eps=1.0),
        replace(copy(works[0]), is_bad=torch.ones(())),
        replace(copy(works[1]), key=-7),
    ]
    works = [
        replace(copy(work), gradient=torch.randn(work.weights.shape).to(work.weights.dtype), step=torch.tensor(3.0))
        for work in works
    ]
    one_by_one = [copy(work) for work in works]
    sums = PartialSums()
    update_many_on_device(works, sums)
    for work in one_by_one:
        update_on_device(work, torch.zeros(max(1, programs(work.weights.numel()))))
    pairs = zip(
        *(
            [x for w in some for x in (w.weights, *w.moments, *(w.scales or ()), w.next_step)]
            for some in (works, one_by_one)
        ),
        strict=True,
    )
    square = sum(float(work.gradient.double().square().sum()) for work in works if not work.is_bad)
    return {
        "differ": float(sum((here != there).sum() for here, there in pairs)),
        "changed": float(
            sum(
                (
                    work.weights != new_slice(work.block, work.weights.dtype, False, work.weights.numel(), 0).weights
                ).sum()
                for work in works
            )
        ),
        "numbers": float(sum(work.weights.numel() for work in works)),
        "squares": abs(float(torch.stack(sums.take()).sum()) - square) / square,
    }


def main() -> None:
    """All of it."""
    cases = [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]
    print(
        json.dumps(
            {
                f"{name} {dtype} {by_chance}": run(name, dtype, by_chance)
                for name in BLOCKS
                for dtype, by_chance in cases
            }
            | {"together": together()}
        )
    )


if __name__ == "__main__":
    main()
