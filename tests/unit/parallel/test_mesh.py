from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from sft_cli.parallel.mesh import process_group

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def torchrun_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in {**values, "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)


def test_a_rank_that_is_done_leaves_the_group() -> None:
    with process_group(CPU) as mesh:
        assert mesh.mesh_dim_names == ("shard",)
    assert not dist.is_initialized()


def test_a_rank_that_failed_does_not_wait_for_the_others() -> None:
    """Leaving NCCL's group takes all ranks of a machine, and the others are waiting for this one."""
    with pytest.raises(MemoryError), process_group(CPU):
        raise MemoryError
    assert dist.is_initialized()
    dist.destroy_process_group()
