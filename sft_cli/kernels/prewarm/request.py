"""What is to be compiled ahead, and which process compiles what of it. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from sft_cli.plan.kernel_shapes import KernelShapes, PlainLayers


class Compiler(NamedTuple):
    """How a backend compiles."""

    cache: str
    """Environment variable that names the folder of what it has compiled."""
    is_shared: bool
    """Processes share the configurations of its kernels, or the kernels. Others are compiled whole, by one process."""


COMPILERS = {
    "fla": Compiler("TRITON_CACHE_DIR", is_shared=True),
    "liger": Compiler("TRITON_CACHE_DIR", is_shared=False),
    "sftune": Compiler("TRITON_CACHE_DIR", is_shared=False),
    "flash_qla": Compiler("TILELANG_CACHE_DIR", is_shared=True),
}
"""Backends that compile when they are first called, and that compiling ahead was measured or counted for. Not among
them: `flex`, which compiles through Inductor."""

SUMS, HEADS, GATE, DECAY = "norm: sums", "norm: heads", "norm: output gate", "conv: decay and beta"
"""Parts of a slot that are compiled by themselves: functions of ours that layers call besides, or in place of, the
slot's. See `plain_layers.py`."""

MOST_SEGMENTS = 256
"""That a pack is tried with: see `share.py`."""
NORM_ROWS = 65_536
"""Of a block of heads: flash-linear-attention 0.6 tells its norms how many of them there are, as a constant (`NB`)."""


class Request(BaseModel):
    """The kernels of one plan, on one kind of GPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shapes: KernelShapes
    backends: dict[str, str]
    """Slot to the backend that the plan chose, of the slots that the model has."""
    plain: PlainLayers | None = None
    """None: layers are of another form, and norms are called by themselves."""
    other_lengths: tuple[int, ...] = ()
    """Slots of other micro-batches than one of `shapes.tokens`: kernels are tuned anew for some of them."""
    is_padded: bool = False
    """Micro-batches are padded rows, which some kernels are compiled for apart from packs."""
    gpu: str
    """Name and compute capability: what is compiled for one GPU is of no use to another."""

    @property
    def compilers(self) -> dict[str, Compiler]:
        """Of the slots that compile; empty where there is nothing to do ahead."""
        return {slot: COMPILERS[backend] for slot, backend in self.backends.items() if backend in COMPILERS}

    def of_slot(self, slot: str) -> Request:
        """All that decides what is compiled for one slot."""
        backend = self.backends[slot]
        plain = self.plain if (slot, backend) == ("norm", "sftune") else None
        is_padded = self.is_padded and (slot, backend) == ("conv", "sftune")
        return self.model_copy(update={"backends": {slot: backend}, "plain": plain, "is_padded": is_padded})

    @property
    def parts(self) -> dict[str, Compiler]:
        """Of those slots: what is shared, or compiled whole. A slot by its name, and what it has besides by the words
        above."""
        parts = {}
        for slot, compiler in self.compilers.items():
            names = [slot]
            if self.backends[slot] == "sftune" and slot == "conv":
                names = [slot, DECAY]
            elif self.backends[slot] == "sftune" and slot == "norm" and self.plain is not None:
                names = [SUMS, HEADS, *([GATE] if self.plain.is_gated else [])]
            parts |= dict.fromkeys(names, compiler)
        return parts

    def shares(self, most: int) -> int:
        """How many processes have something to do, of `most`."""
        shared = [compiler.is_shared for compiler in self.parts.values()]
        return most if any(shared) else min(most, len(shared))


class Task(BaseModel):
    """What one process compiles. It reads this from its standard input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request: Request
    share: int
    """From 0 to `shares` - 1."""
    shares: int
    device_index: int
    """Of the visible GPUs."""

    @property
    def parts(self) -> list[str]:
        """All parts that are shared, and this share's of the others, which go round."""
        parts = self.request.parts
        whole = [part for part, compiler in parts.items() if not compiler.is_shared]
        own = whole[self.share :: self.shares]
        return [part for part, compiler in parts.items() if compiler.is_shared or part in own]
