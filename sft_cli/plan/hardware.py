"""What this machine can train on: its visible GPUs, found without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from sft_cli.plan.backends import PACKAGES, TRITON
from sft_cli.plan.gpus import find_gpu
from sft_cli.plan.nvcc import has_nvcc
from sft_cli.plan.nvml import Device, list_devices


@dataclass(frozen=True)
class Hardware:
    gpus: int
    """Visible GPUs of this machine."""
    gpu_name: str | None
    gpu_memory_gib: float | None
    """Of the smallest visible GPU, or of the named one."""
    named: bool = False
    """The GPU was named with `--gpu`: plan for it, whether or not this machine has one."""
    compute_capability: tuple[int, int] | None = None
    """Of the smallest visible GPU, or of the named one; None without one."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of the kernel packages that are installed here, by distribution; looked for where there is a GPU."""
    has_nvcc: bool = True
    """Whether CUDA's compiler is at hand, without which TileLang does not work; looked for where there is a GPU."""


KERNEL_PACKAGES = ("tilelang", "torchao", *(package.distribution for package in (TRITON, *PACKAGES)))


def find_hardware(gpu: str | None = None) -> Hardware:
    """The machine's visible GPUs; `gpu` (`h200`) puts a GPU from the table in their place.

    Raises:
        UsageError: a name that the table lacks.
    """
    # Only asked for where the variable names slices: the driver lists whole GPUs.
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    mig_uuids = [entry for entry in (setting or "").split(",") if entry.startswith("MIG-")]
    devices = visible(list_devices(mig_uuids), setting)
    if gpu is not None:
        named = find_gpu(gpu)
        return Hardware(
            len(devices), named.name, named.memory_gib, named=True, compute_capability=named.compute_capability
        )
    if not devices:
        return Hardware(0, None, None)
    smallest = min(devices, key=lambda device: device.memory_gib)
    return Hardware(
        len(devices),
        smallest.name,
        smallest.memory_gib,
        compute_capability=smallest.compute_capability,
        packages=dict(_installed()),
        has_nvcc=has_nvcc(),
    )


def _installed() -> Iterator[tuple[str, str]]:
    for package in KERNEL_PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def visible(devices: Sequence[Device], setting: str | None) -> list[Device]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    As the CUDA Programming Guide describes the variable: entries are indices or the beginnings of UUIDs; the first
    entry that names no device ends the list; a device named twice leaves none. Indices count in PCI order here,
    which differs from CUDA's default where GPUs of several kinds are mixed.

    Args:
        devices: all devices of the machine.
        setting: the variable's value; None where it isn't set.
    """
    whole = [device for device in devices if not device.uuid.startswith("MIG-")]
    if setting is None:
        return whole
    chosen: list[Device] = []
    for entry in (entry.strip() for entry in setting.split(",")):
        if entry.isdecimal():
            matches = whole[int(entry) : int(entry) + 1]
        else:
            matches = [device for device in devices if entry and device.uuid.startswith(entry)]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen += matches
    return chosen
