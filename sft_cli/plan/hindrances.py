"""Why a kernel backend can't serve a model on a machine, and what would help."""

from __future__ import annotations

from dataclasses import dataclass

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.backends import HOPPER, Backend, Package
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_types import GENERIC
from sft_cli.plan.nvcc import INSTALL
from sft_cli.recipe.schema import Recipe

MOST_ELEMENTS = 2**31
"""Of a tensor that a kernel reaches with 32-bit offsets."""
FLASH_LONGEST_HEAD, FLASH_HEAD_STEP = 256, 8
"""Head dimensions that FlashAttention 2 has kernels for, as torch's varlen attention calls it; only sdpa pads."""


@dataclass(frozen=True)
class Case:
    """What the choice depends on."""

    recipe: Recipe
    shape: Architecture
    hardware: Hardware
    slots: tuple[str, ...]
    """That the model has."""
    attention_dropout: float
    """Share of attention weights that the model drops while it trains."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.hardware.gpus) or self.hardware.named


@dataclass(frozen=True)
class Hindrance:
    """Why not."""

    what: str
    remedy: str


def find_hindrance(case: Case, slot: str, backend: Backend) -> Hindrance | None:
    """The first thing that keeps a backend from its slot; None where it can run, as far as can be told without a call.

    `check-kernels` calls it.
    """
    if backend.gpu_only and not case.on_gpu:
        return Hindrance("it needs a GPU, and none is visible", "Write `auto`.")
    if backend.package is not None and (absent := missing(case.hardware, backend.package)):
        return absent
    if (fault := known_fault(slot, backend.name, case.hardware)) is not None:
        return fault
    dtype = case.recipe.model.dtype
    if dtype not in backend.dtypes:
        return Hindrance(backend.no_other_dtype, "Write `dtype: bfloat16` under `model`.")
    capability = case.hardware.compute_capability
    if backend.compute_capability is not None and capability is not None and capability < backend.compute_capability:
        has, needs = (".".join(map(str, version)) for version in (capability, backend.compute_capability))
        return Hindrance(f"compute capability {has}, and it needs {needs}", "Train on a newer GPU, or write `auto`.")
    if (limit := _limit(case, slot, backend.name)) is not None:
        return Hindrance(limit, "Write `auto`.")
    return _too_long(case, backend.name)


def known_fault(slot: str, backend: str, hardware: Hardware) -> Hindrance | None:
    """What is known to be wrong with a backend beside these packages on this GPU; None mostly."""
    if (slot, backend) != ("linear_attention", "fla") or not _is_refused_backward(hardware):
        return None
    triton = hardware.packages["triton"]
    what = f"flash-linear-attention's backward is wrong on Hopper with Triton {triton} (issue 640), so it refuses"
    if "tilelang" in hardware.packages:
        return Hindrance(f"{what}; TileLang is installed, and finds no nvcc", f"{INSTALL}; or a Triton from 3.7.1 on.")
    return Hindrance(what, "pip install tilelang, whose kernel takes its place; or a Triton from 3.7.1 on.")


def _is_refused_backward(hardware: Hardware) -> bool:
    """Triton from 3.4.0 up to but not 3.7.1 on Hopper, with no TileLang to take over."""
    triton = hardware.packages.get("triton")
    if hardware.named or triton is None or hardware.compute_capability != HOPPER:
        return False
    if "tilelang" in hardware.packages and hardware.has_nvcc:
        return False
    return (3, 4, 0) <= _release(triton) < (3, 7, 1)


def missing(hardware: Hardware, package: Package) -> Hindrance | None:
    """What of a package is not installed.

    For a GPU named with `--gpu`: what sftune's extra `gpu` brings will be there.
    """
    if hardware.named and package.is_extra:
        return None
    installed = hardware.packages.get(package.distribution)
    if installed is None or _release(installed) < package.oldest:
        oldest = ".".join(map(str, package.oldest))
        return Hindrance(f"no {package.name} from {oldest} on is installed", f"{package.install}.")
    absent = [need for need in package.needs if need not in hardware.packages]
    if absent:
        return Hindrance(f"{' and '.join(absent)} is not installed", f"{package.install}.")
    if "tilelang" in package.needs and not hardware.has_nvcc:
        return Hindrance("TileLang finds no nvcc to compile with", f"{INSTALL}.")
    return None


def _limit(case: Case, slot: str, backend: str) -> str | None:
    """What of the model is beyond a backend."""
    shape = case.shape
    if backend in ("varlen", "flash_attention_2", "flash_attention_4"):
        if shape.head_dim > FLASH_LONGEST_HEAD:
            return f"heads of {shape.head_dim}, and it goes up to {FLASH_LONGEST_HEAD}"
        if shape.head_dim % FLASH_HEAD_STEP:
            return f"heads of {shape.head_dim}, and it needs a multiple of {FLASH_HEAD_STEP}"
    if backend in ("varlen", "flash_attention_4", "flex") and case.attention_dropout:
        return f"the model drops {case.attention_dropout:.0%} of its attention weights, and it drops none"
    if slot in ("norm", "mlp") and backend != "torch" and shape.family == GENERIC:
        return "a model without a family of its own keeps its own modules"
    net = shape.delta_net
    if net is None:
        return None
    if backend == "flash_qla" and not net.key_head_dim == net.value_head_dim == 128:
        return f"key heads of {net.key_head_dim} and value heads of {net.value_head_dim}, and it has kernels for 128"
    if slot == "linear_attention" and backend == "fla" and net.key_head_dim > 256:
        return f"key heads of {net.key_head_dim}, and it goes up to 256"
    if backend == "causal_conv1d" and net.conv_dim % 8:
        return f"{net.conv_dim} channels, and it needs a multiple of 8"
    if (slot, backend) == ("conv", "sftune") and net.conv_kernel != 4:
        return f"{net.conv_kernel} taps, and it has kernels for 4"
    return None


def _too_long(case: Case, backend: str) -> Hindrance | None:
    """Where a micro-batch is beyond a backend; another would be far slower, a shorter micro-batch is not."""
    net, slots = case.shape.delta_net, case.recipe.batching.tokens
    if net is None or backend not in ("fla", "flash_qla"):
        return None
    widest = max(net.conv_dim, net.value_dim)
    if slots * widest < MOST_ELEMENTS:
        return None
    what = f"{slots:,} slots of {widest:,} values are more than its 32-bit offsets reach"
    return Hindrance(what, f"Write `batching.tokens` of at most {(MOST_ELEMENTS - 1) // widest:,}.")


def _release(version: str) -> tuple[int, ...]:
    """`3.6.0+git1234` -> (3, 6, 0)."""
    numbers = version.partition("+")[0].split(".")[:3]
    return tuple(int("".join(filter(str.isdigit, number)) or 0) for number in numbers)
