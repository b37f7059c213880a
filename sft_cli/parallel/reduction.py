"""How the gradients of a step come together over ranks: what FSDP2 reduces when, and what it does not reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule


class GradientReduction:
    """Args:
    model: sharded.
    whole: names of its parameters that every rank has whole, because FSDP2 was told to ignore them: their
        gradients have to be summed beside its own. Few and small; one collective a step.
    defer: FSDP2 accumulates whole gradients over micro-batches and reduces them once a step.
    """

    def __init__(self, model: nn.Module | None, whole: Sequence[str], *, defer: bool) -> None:
        self._model = model
        self._whole = whole
        self._defer = defer

    @classmethod
    def of_one_process(cls) -> GradientReduction:
        """Nothing to reduce."""
        return cls(None, (), defer=False)

    def before_backward(self, *, is_last: bool) -> None:
        """Told before each micro-batch's forward.

        Args:
            is_last: no other micro-batch follows in this step.
        """
        if self._defer:
            assert isinstance(self._model, FSDPModule)
            self._model.set_requires_gradient_sync(is_last)

    def whole(self) -> list[nn.Parameter]:
        """The parameters that `finish` sees to."""
        # Looked up now: giving a model storage puts new parameters in the place of those on meta.
        return [] if self._model is None else [self._model.get_parameter(name) for name in self._whole]

    @torch.no_grad()
    def finish(self) -> None:
        """Sums over all ranks what FSDP2 leaves alone; after the last backward of a step."""
        if not self._whole or dist.get_world_size() == 1:
            return
        gradients = [parameter.grad for parameter in self.whole()]
        present = [gradient for gradient in gradients if gradient is not None]
        flat = torch.cat([gradient.flatten() for gradient in present])
        dist.all_reduce(flat)
        sums = flat.split([gradient.numel() for gradient in present])
        torch._foreach_copy_(present, [part.view_as(one) for part, one in zip(sums, present, strict=True)])
