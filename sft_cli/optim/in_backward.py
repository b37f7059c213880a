"""Updates fused into backward: each parameter as soon as its gradient is there, which is then dropped."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sft_cli.optim.low_precision import LowPrecisionAdamW
from sft_cli.optim.partial_sums import PartialSums


class InBackward:
    """Every backward updates from now on, so a step has one micro-batch.

    Hooks after a gradient's accumulation; FSDP2 calls them when the gradient is summed over ranks and this rank has its
    shard, on the stream of the reduction, which the next gathering of the weights waits for. A group's gradients exist
    until the last of them is used, and never those of the whole model.

    A shard whose gradient is not finite stays as it was; those before it have been updated by then. Where the update
    is our kernel, that sums the gradient's squares as it reads it, and of a shard those blocks stay as they were whose
    gradient is not finite.

    Args:
        optimizer: steps over one parameter at a time, and has `found_inf` to skip it.
        late: parameters whose gradient is summed over ranks only after backward; see `finish`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, late: Collection[nn.Parameter] = ()) -> None:
        self._optimizer = optimizer
        self._late: list[tuple[int, nn.Parameter]] = []
        """With the number of its group: loading a state makes new groups."""
        self._small: list[tuple[int, nn.Parameter]] = []
        """What backward has made a gradient of, which waits for the end: one update takes the host longer than many
        small ones together. A part of a layer's sharded gradients would keep them all."""
        self._squares: list[Tensor] = []
        self._sums: dict[int, PartialSums] = defaultdict(PartialSums)
        """Of squares that kernels have summed, by how many ranks count the same numbers."""
        self._flags: tuple[Tensor, ...] = ()
        self._is_rehearsal = False
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if any(parameter is one for one in late):
                    self._late.append((number, parameter))
                    continue
                parameter.register_post_accumulate_grad_hook(partial(self._update, number))

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Inside, updates change nothing."""
        self._is_rehearsal = True
        yield
        self._is_rehearsal = False

    def finish(self) -> None:
        """Updates what no hook has updated, once its gradients are summed over ranks; after each backward."""
        for number, parameter in self._late:
            self._update(number, parameter)
        self._update_small()

    def grad_norm(self) -> Tensor:
        """float32 scalar on the device: the 2-norm of the gradient that the last backward has used, over all ranks."""
        squares, self._squares = self._squares, []
        for copies, sums in self._sums.items():
            squares.append(torch.stack(sums.take()).sum() / copies)
        square = torch.stack(squares).sum()
        dist.all_reduce(square)
        return square.sqrt()

    def _update(self, number: int, parameter: nn.Parameter) -> None:
        optimizer, copies = self._optimizer, _copies(parameter)
        group = optimizer.param_groups[number]
        if isinstance(optimizer, LowPrecisionAdamW) and optimizer.sums_squares(parameter):
            if optimizer.is_small(parameter) and not isinstance(parameter, DTensor):
                self._small.append((number, parameter))
                return
            optimizer.squares = self._sums[copies]
            optimizer.found_inf = self._constant_flag(parameter.device)
        else:
            gradient = parameter.grad
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            norm = torch.linalg.vector_norm(local, dtype=torch.float32)
            self._squares.append(norm.square() / copies)
            is_bad = ~norm.isfinite() | self._is_rehearsal
            optimizer.found_inf = is_bad.float()  # type: ignore[attr-defined]
        if isinstance(optimizer, LowPrecisionAdamW):
            optimizer.update(parameter, group)
        else:
            groups, optimizer.param_groups = optimizer.param_groups, [{**group, "params": [parameter]}]
            optimizer.step()
            optimizer.param_groups = groups
        parameter.grad = None

    def _update_small(self) -> None:
        small, self._small = self._small, []
        if not small:
            return
        optimizer = self._optimizer
        assert isinstance(optimizer, LowPrecisionAdamW)
        optimizer.squares = self._sums[_copies(small[0][1])]
        optimizer.found_inf = self._constant_flag(small[0][1].device)
        optimizer.update_small([(parameter, optimizer.param_groups[number]) for number, parameter in small])
        for _, parameter in small:
            parameter.grad = None

    def _constant_flag(self, device: torch.device) -> Tensor:
        """float32 scalar: whether nothing may change, whatever the gradient."""
        if not self._flags:
            self._flags = torch.arange(2.0, device=device).unbind()
        return self._flags[self._is_rehearsal]


def _copies(parameter: Tensor) -> int:
    """How many ranks hold the same numbers of a parameter, so that a sum over ranks counts them so often."""
    if not isinstance(parameter, DTensor):
        return dist.get_world_size()
    mesh, placements = parameter.device_mesh, parameter.placements
    return math.prod(mesh.size(axis) for axis, placement in enumerate(placements) if placement.is_replicate())
