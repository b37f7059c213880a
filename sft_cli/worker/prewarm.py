"""Compiling a plan's kernels while the model is put together: one process a machine sees to it, the others wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from threading import Event

import torch
import torch.distributed as dist

from sft_cli.kernels.prewarm.parallel import MOST_PROCESSES, prewarm
from sft_cli.kernels.prewarm.request import Request
from sft_cli.model.families import FAMILIES
from sft_cli.plan.cores import usable_cores
from sft_cli.plan.kernel_shapes import PlainLayers, plain_layers_of, shapes_of, slots_of
from sft_cli.plan.plan import Plan
from sft_cli.train.exactness import SLOTS as GATE_SLOTS

_CONTEXT_GIB = 1.0
"""Of a process that has done nothing yet: CUDA's context and libraries."""
_BYTES_PER_VALUE = 24
"""Of a delta rule's forward and backward, for each token and channel of its values: 20 GB for 131,072 slots at 27B."""
_SECONDS_BETWEEN_LINES = 10.0
_PADDED_LENGTHS = 8


@contextmanager
def compiling_ahead(
    plan: Plan, device: torch.device, is_stopped: Callable[[], bool]
) -> Iterator[Callable[[Callable[[str], None]], None]]:
    """Fills the folders of compiled kernels beside what is done inside, such as reading weights; every rank must take
    part. Nothing to do on a CPU, or the second time.

    Args:
        is_stopped: whether a signal has asked this process to end, which then happens at its first step.

    Yields:
        What waits for that, on all ranks, given whom to tell lines; it may be called again. What leaves without having
        waited ends it, and leaves its lines in the log of this rank.
    """
    if device.type == "cpu":
        yield lambda say: None
        return
    lines: SimpleQueue[str | None] = SimpleQueue()
    """None: there are no more."""
    is_left = Event()
    with ExitStack() as stack:
        stack.callback(_print_untold, lines)
        compiling: Future[None] | None = None
        if int(os.environ["LOCAL_RANK"]) == 0:
            processes = _processes(plan, device)
            thread = stack.enter_context(ThreadPoolExecutor(1, "compiling ahead"))
            stack.callback(is_left.set)
            compiling = thread.submit(
                prewarm_kernels, plan, device, processes, lines.put, lambda: is_left.is_set() or is_stopped()
            )
            compiling.add_done_callback(lambda _: lines.put(None))

        def wait(say: Callable[[str], None]) -> None:
            if compiling is not None:
                while not (compiling.done() and lines.empty()):
                    if (line := lines.get()) is not None:
                        say(line)
                compiling.result()
            # On the host: it waits for as long as compiling takes, and no GPU is needed for it.
            dist.all_reduce(torch.zeros(1))

        yield wait


def _print_untold(lines: SimpleQueue[str | None]) -> None:
    while not lines.empty():
        if (line := lines.get()) is not None:
            print(line, flush=True)


def prewarm_kernels(
    plan: Plan, device: torch.device, processes: int, say: Callable[[str], None], is_stopped: Callable[[], bool]
) -> None:
    """What one process of a machine does of it."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    progress = _Progress(say)
    seconds = prewarm(
        request_of(plan, gpu=f"{torch.cuda.get_device_name(device)}, {capability}"),
        device_index=index,
        cores=processes,
        progress=progress,
        say=say,
        is_stopped=is_stopped,
    )
    progress.flush()
    if seconds:
        say(f"compiled the kernels of {progress.names} functions in {seconds:.0f} s, once for this machine")


def request_of(plan: Plan, gpu: str) -> Request:
    """What a plan's steps will call.

    Args:
        gpu: see `Request`.
    """
    shape, kernels = plan.model.architecture(), plan.recipe.kernels.model_dump()
    return Request(
        shapes=shapes_of(shape, plan.recipe.model.dtype, plan.recipe.batching.tokens),
        backends={slot: kernels[slot] for slot in slots_of(shape, plan.model.config)},
        plain=_plain_layers(plan),
        other_lengths=_other_lengths(plan),
        is_padded=plan.recipe.batching.mode == "padding",
        gpu=gpu,
    )


def _plain_layers(plan: Plan) -> PlainLayers | None:
    """None where the family's layers are of another form."""
    family, recipe = FAMILIES[plan.model.family], plan.recipe
    if not family.is_plain:
        return None
    assert family.norm_offset is not None, "who knows the layers knows their norms"
    # FSDP2 casts parameters; without it autocast does, where a product needs it.
    weights = recipe.model.master_dtype if recipe.sharding.backend == "none" else recipe.model.dtype
    return plain_layers_of(plan.model.architecture(), plan.model.config, family.norm_offset, weights)


def _other_lengths(plan: Plan) -> tuple[int, ...]:
    """The exactness gate's, and of padded rows some up to `batching.tokens`.

    flash-linear-attention's norms are compiled and tuned anew for every 65,536 heads of a micro-batch.
    """
    tokens = plan.recipe.batching.tokens
    padded = [tokens * part // _PADDED_LENGTHS for part in range(1, _PADDED_LENGTHS)]
    return (GATE_SLOTS, *(padded if plan.recipe.batching.mode == "padding" and tokens > 1024 else ()))


def _processes(plan: Plan, device: torch.device) -> int:
    """As many as there are cores for, and as fit on the GPU side by side, and beside the model, which comes meanwhile.
    To be asked before that."""
    shapes = shapes_of(plan.model.architecture(), plan.recipe.model.dtype, plan.recipe.batching.tokens)
    net = shapes.delta_net
    values = net.value_heads * net.value_head_dim if net is not None else shapes.intermediate
    each_gib = _CONTEXT_GIB + shapes.tokens * values * _BYTES_PER_VALUE / 2**30
    free_gib = torch.cuda.mem_get_info(device)[0] / 2**30 - plan.memory_gib.parameters - plan.memory_gib.optimizer
    return max(1, min(MOST_PROCESSES, usable_cores() - 1, int(0.9 * free_gib / each_gib)))


class _Progress:
    """Names of kernels as they begin, a line every few seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.names = 0
        self._say = say
        self._waiting: list[str] = []
        self._told_at = time.monotonic() - _SECONDS_BETWEEN_LINES

    def __call__(self, line: str) -> None:
        self.names += 1
        self._waiting.append(line.removeprefix("compiling "))
        if time.monotonic() - self._told_at >= _SECONDS_BETWEEN_LINES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._say(f"compiling kernels: {', '.join(self._waiting)}")
            self._told_at = time.monotonic()
        self._waiting = []
