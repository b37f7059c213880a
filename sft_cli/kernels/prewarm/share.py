"""One process's share: the planned kernels are run, and what they compile is compiled by one process of several.

Written against Triton 3.6: `Autotuner.run` measures all configurations of a kernel, one after another, when it meets
a tuning key for the first time; nearly all of that time is compilation, which is kept in TRITON_CACHE_DIR. Unnecessary
once Triton compiles configurations side by side (its `AsyncCompileMode` is not used by the autotuner in 3.6).

Written against TileLang 0.1.15, which compiles a kernel when it is first called, for 10 to 20 s.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from sft_cli.kernels.check.cases import Draw, Sizes, timed
from sft_cli.kernels.check.slots import SLOTS
from sft_cli.kernels.load import LOAD
from sft_cli.kernels.prewarm.plain_layers import PARTS
from sft_cli.kernels.prewarm.request import MOST_SEGMENTS, Request, Task

ROWS = Sizes("rows", 1, [MOST_SEGMENTS], is_pack=False, is_strided=False)
PACKED_SLOTS = ("linear_attention", "conv")
SEGMENT_COUNTS = tuple(2**power for power in range(MOST_SEGMENTS.bit_length()))
"""Segments of a pack that are tried: flash-qla 0.1.3 has a forward kernel for each of three ranges of segments times
value heads, and took 20 s in the middle of a run to compile one."""


def compile_share(task: Task, device: torch.device, began: Callable[[str], None]) -> None:
    """Forward and backward of every part of a task, as training calls them, on random inputs.

    Changes Triton's autotuner for the rest of this process, which must not train.

    Args:
        began: called with a kernel's name as its compilation begins.
    """
    request = task.request
    if any(request.parts[part].is_shared for part in task.parts):
        share_tuning(task.share, task.shares, began)
    # flash-linear-attention has a step of TileLang's, too, where that is installed.
    if importlib.util.find_spec("tilelang") is not None:
        share_kernels(task.share, task.shares, began)
    for part in task.parts:
        slot = part.partition(":")[0]
        if not request.parts[part].is_shared:
            began(f"{request.backends[slot]} {part}")
        if part in PARTS:
            PARTS[part](request, device)
        else:
            _run_slot(slot, request.backends[slot], request, device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()  # the other processes are on the same GPU


def _run_slot(slot: str, name: str, request: Request, device: torch.device) -> None:
    kernel, shapes = LOAD[slot][name](), request.shapes
    # Some kernels are compiled for several tile widths, and take one by the number of segments.
    counts = [count for count in SEGMENT_COUNTS if count <= shapes.tokens] if slot in PACKED_SLOTS else [1]
    sizes = [timed(shapes.tokens, count) for count in counts] + [timed(length) for length in request.other_lengths]
    if slot == "conv" and name == "sftune" and request.is_padded:
        sizes.append(ROWS)
    for case in SLOTS[slot].cases(shapes, Draw(shapes, device), sizes):
        out = case.call(kernel, **case.inputs)
        torch.autograd.grad(out, list(case.inputs.values()), torch.ones_like(out))


def share_kernels(share: int, shares: int, began: Callable[[str], None]) -> None:
    """Makes TileLang compile every n-th kernel of those it is asked for; the others do nothing here.

    That works for kernels that write into tensors they are handed, as all of flash-qla's and flash-linear-attention's
    do: what comes after gets memory with anything in it, and no kernel takes a place to read or write from that.
    """
    from tilelang.jit import JITImpl

    ordinary = JITImpl.compile
    asked = itertools.count()

    def compile_own(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_own = next(asked) % shares == share
        if not is_own and self.out_idx is None and self.mode == "lazy":
            return lambda *tensors: None
        began(self.func.orig_func.__name__)
        return ordinary(self, *args, **kwargs)

    JITImpl.compile = compile_own


def share_tuning(share: int, shares: int, began: Callable[[str], None]) -> None:
    """Makes Triton's autotuner compile `configs[share::shares]` of each kernel and measure nothing.

    Subclasses (flash-linear-attention's) end in the same `run`. Nothing is written about which configuration is best.
    """
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources, PTXASError

    # For these Triton leaves a configuration out, too (`Autotuner._bench`).
    faults = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
    ordinary = Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        if len(self.configs) > 1 and (key := _tuning_key(self, kwargs)) not in self.cache:
            began(self.base_fn.__name__)
            configs = self.prune_configs(kwargs)
            own = configs[share::shares]
            for config in own:
                # As `KernelInterface.warmup` does: to the binary, without a launch.
                with suppress(*faults):
                    self.fn.run(*args, **{**kwargs, "warmup": True}, **config.all_kwargs())
            # What comes after has to get an output: of an own configuration, since that is compiled by now. The
            # launcher in C, which one launch compiles, is the same for all of them.
            start = share % len(configs)
            others = [config for config in configs[start:] + configs[:start] if config not in own]
            for config in [*own, *others]:
                try:
                    out = _launch(self, config, args, kwargs)
                except faults as error:
                    fault = error
                else:
                    self.cache[key] = config
                    self.nargs = None  # as Triton does, or the inputs would stay on the GPU
                    return out
            raise fault
        return ordinary(self, *args, **kwargs)

    Autotuner.run = run


def _tuning_key(tuner: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """As `Autotuner.run` makes it."""
    named = {name: value for name, value in {**tuner.nargs, **kwargs}.items() if name in tuner.arg_names}
    values = [named[name] for name in tuner.keys if name in named]
    return (*values, *(str(value.dtype) for value in named.values() if hasattr(value, "dtype")))


def _launch(tuner: Any, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As the end of `Autotuner.run`. The hooks that keep measurements from spoiling an input aren't needed."""
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
    return tuner.fn.run(*args, **kwargs, **config.all_kwargs())
