from __future__ import annotations

import os
from pathlib import Path

import pytest

from sft_cli.launch.environment import worker_environment
from sft_cli.plan.plan import World

CPU = World(ranks=2, device="cpu")
GPU = World(ranks=8, device="cuda")


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(16, 1, "15"), (16, 2, "7"), (5, 2, "2"), (2, 1, "1"), (1, 4, "1")]
)
def test_all_cores_but_one_are_divided_among_ranks(cores: int, ranks: int, threads: str) -> None:
    environment = worker_environment(World(ranks=ranks, device="cpu"), {}, cpu_cores=cores)
    assert environment["OMP_NUM_THREADS"] == threads


def test_what_the_user_set_is_kept() -> None:
    base = {
        "OMP_NUM_THREADS": "3",
        "TOKENIZERS_PARALLELISM": "true",
        "PYTORCH_ALLOC_CONF": "backend:native",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HF_HUB_OFFLINE": "1",
        "SOMETHING": "else",
    }
    environment = worker_environment(GPU, base, cpu_cores=16)
    assert {key: environment[key] for key in base} == base


def test_base_is_not_changed() -> None:
    base: dict[str, str] = {}
    worker_environment(CPU, base, cpu_cores=1)
    assert base == {}


def test_allocator_is_set_on_gpus_alone() -> None:
    assert worker_environment(GPU, {}, cpu_cores=16)["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_ALLOC_CONF" not in worker_environment(CPU, {}, cpu_cores=16)
    assert "PYTORCH_ALLOC_CONF" not in worker_environment(GPU, {"PYTORCH_CUDA_ALLOC_CONF": "x"}, cpu_cores=16)


def test_compiled_kernels_outlive_the_run() -> None:
    environment = worker_environment(GPU, {"XDG_CACHE_HOME": "/cache", "TRITON_CACHE_DIR": "/mine"}, cpu_cores=16)
    assert environment["TRITON_CACHE_DIR"] == "/mine"
    assert environment["TILELANG_CACHE_DIR"] == "/cache/sftune/kernels/tilelang"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/cache/sftune/kernels/inductor"
    on_cpu = worker_environment(CPU, {"XDG_CACHE_HOME": "/cache"}, cpu_cores=16)
    assert on_cpu["TORCHINDUCTOR_CACHE_DIR"] == "/cache/sftune/kernels/inductor"


def test_gloo_stays_on_the_machine_when_all_ranks_do() -> None:
    assert worker_environment(CPU, {}, cpu_cores=2, platform="linux")["GLOO_SOCKET_IFNAME"] == "lo"
    apart = worker_environment(CPU, {}, cpu_cores=2, ranks_here=1, is_loopback=True, platform="linux")
    assert apart["GLOO_SOCKET_IFNAME"] == "lo"
    assert worker_environment(CPU, {}, cpu_cores=2, platform="darwin")["GLOO_SOCKET_IFNAME"] == "lo0"
    assert "GLOO_SOCKET_IFNAME" not in worker_environment(CPU, {}, cpu_cores=2, ranks_here=1)


def test_workers_find_this_checkout_first() -> None:
    root = str(Path(__file__).parents[3])
    environment = worker_environment(CPU, {"PYTHONPATH": "/elsewhere"}, cpu_cores=2)
    assert environment["PYTHONPATH"].split(os.pathsep)[-1] == "/elsewhere"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] in (root, "/elsewhere")
