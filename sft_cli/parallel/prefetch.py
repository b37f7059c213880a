"""How many layers ahead of the one at work FSDP2 gathers."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.fsdp import FSDPModule


def gather_ahead(root: FSDPModule, in_order: Sequence[FSDPModule], layers: int) -> None:
    """Lets each group gather the next `layers` groups while it computes, in forward and in backward.

    Args:
        root: the whole model.
        in_order: its groups as forward comes to them.
        layers: 0 gathers nothing ahead: a layer's parameters are gathered when it is its turn, and it waits for them.
    """
    for index, module in enumerate(in_order):
        ahead = list(in_order[index + 1 : index + 1 + layers])
        behind = list(reversed(in_order[max(0, index - layers) : index]))
        module.set_modules_to_forward_prefetch(ahead)
        # FSDP2 takes an empty list for "as you like", which is one group ahead; a group that is whole already is
        # how one says none.
        module.set_modules_to_backward_prefetch(behind or [module])
    if layers == 0:
        # Else a gather runs on a stream of its own, as soon as the host comes to it: ahead of the device.
        root._set_unshard_async_op(True)
