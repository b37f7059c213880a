"""The environment of the workers, set before torch starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from sft_cli.launch.caches import kernel_caches
from sft_cli.plan.child_process import python_path
from sft_cli.plan.cores import usable_cores
from sft_cli.plan.plan import World


def worker_environment(
    world: World,
    base: Mapping[str, str],
    *,
    ranks_here: int | None = None,
    is_loopback: bool = False,
    cpu_cores: int | None = None,
    platform: str = sys.platform,
) -> dict[str, str]:
    """`base` and what a worker needs beside it. What the user has set is kept.

    Args:
        ranks_here: ranks on this machine; None: as many as on every node of `world`.
        is_loopback: several "nodes", and all are this machine.
        cpu_cores: cores that this machine's ranks share; None: those this process may use.
        platform: as `sys.platform`.
    """
    cores = cpu_cores if cpu_cores is not None else usable_cores()
    here = ranks_here if ranks_here is not None else world.ranks_per_node
    wanted = {
        # torchrun sets 1 where nothing is set, and lets several ranks on a CPU fight for all cores in torch's own.
        # One core stays free: threads that spin at OpenMP's barriers stand still as soon as anything else wants
        # their core. On two cores beside one busy process: 60 tokens a second with two threads, 2,400 with one.
        "OMP_NUM_THREADS": str(max(1, (cores - 1) // here)),
        # The Rust tokenizers warn about every fork after first use, and thread themselves without being asked.
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        # A file datasets.py in the working directory would otherwise be imported in place of the package.
        "PYTHONSAFEPATH": "1",
        # On a CPU too: merely imported, Inductor makes its folder.
        **kernel_caches(base),
    }
    if world.device == "cuda" and "PYTORCH_CUDA_ALLOC_CONF" not in base:
        # Packs are of one size, but gathered layers and logits are not: segments that grow don't fragment.
        wanted["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if here == world.ranks or is_loopback:
        # Else gloo looks up the host's name: slow or wrong without a resolver, and no business of one machine.
        wanted["GLOO_SOCKET_IFNAME"] = "lo0" if platform == "darwin" else "lo"
    return {**wanted, **base, "PYTHONPATH": python_path(base)}
