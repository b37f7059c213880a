from __future__ import annotations

from importlib.metadata import version

import pytest

from sft_cli.errors import UsageError
from sft_cli.plan import hardware
from sft_cli.plan.backends import BACKENDS
from sft_cli.plan.hardware import Hardware, find_hardware, visible
from sft_cli.plan.nvml import Device

BIG = Device("GPU-aaaa1111", "NVIDIA H200", 140.0, (9, 0))
SMALL = Device("GPU-aabb2222", "NVIDIA L40S", 45.0, (8, 9))
SLICE = Device("MIG-cccc", "NVIDIA H200 MIG 1g.18gb", 16.0, (9, 0))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [BIG, SMALL]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", [BIG]),
        ("1,0", [SMALL, BIG]),
        (" 1 , 0 ", [SMALL, BIG]),
        ("0,7,1", [BIG]),
        ("0,-1,1", [BIG]),
        ("0,0", []),
        ("GPU-aabb2222", [SMALL]),
        ("GPU-aab", [SMALL]),
        ("GPU-aa", []),
        ("GPU-zzzz", []),
        ("MIG-cccc", [SLICE]),
    ],
)
def test_cuda_visible_devices(setting: str | None, expected: list[Device]) -> None:
    assert visible([BIG, SMALL, SLICE], setting) == expected


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "list_devices", lambda mig_uuids: (BIG, SMALL))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
def test_the_smallest_gpu_is_what_must_suffice() -> None:
    found = find_hardware()
    assert (found.gpus, found.gpu_name, found.gpu_memory_gib, found.named) == (2, "NVIDIA L40S", 45.0, False)
    assert found.compute_capability == (8, 9)


@pytest.mark.usefixtures("two_gpus")
def test_kernel_packages_are_looked_up_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "KERNEL_PACKAGES", ("pydantic", "not-installed"))
    assert find_hardware().packages == {"pydantic": version("pydantic")}


@pytest.mark.usefixtures("two_gpus")
def test_what_any_backend_needs_is_looked_up() -> None:
    """What is not looked for counts as not installed."""
    needed = {b.package.distribution for backends in BACKENDS.values() for b in backends if b.package is not None}
    assert needed <= set(hardware.KERNEL_PACKAGES)


def test_hidden_gpus_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_hardware() == Hardware(0, None, None)


@pytest.mark.usefixtures("two_gpus")
def test_a_named_gpu_takes_the_place_of_this_machines() -> None:
    found = find_hardware("h100")
    assert (found.gpus, found.gpu_name, found.named) == (2, "NVIDIA H100 80GB HBM3", True)
    assert found.compute_capability == (9, 0)


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="voodoo2"):
        find_hardware("voodoo2")
