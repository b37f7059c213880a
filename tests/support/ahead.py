"""Triton kernels compiled for a GPU that is not here."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)
"""Compute capability 9.0."""


def ptx(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    *,
    unaligned: Collection[str] = (),
    **options: Any,
) -> str:
    """What a kernel is compiled to.

    Args:
        types: of arguments, as Triton writes them; of pointers `*`, and of all others `""`, where they are not named.
        constants: compile-time arguments; those that the kernel does not have are left out.
        unaligned: arguments that 16 need not divide, as it does a model's tensors and widths.
        options: of the compiler, such as `num_warps`.
    """
    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    signature = {name: types.get(name, types["*" if name.endswith("_at") else ""]) for name in names}
    source = ASTSource(
        kernel,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (at,): [["tt.divisibility", 16]]
            for at, name in enumerate(names)
            if name not in unaligned and name not in constants
        },
    )
    made: str = triton.compile(source, target=TARGET, options=options).asm["ptx"]
    return made


def accesses(code: str) -> list[str]:
    """The instructions that read or write a GPU's memory, each once."""
    return sorted(set(re.findall(r"(?:ld|st)\.global[\w.]*", code)))
