"""The exactness gate with the kernels of a GPU: it lets every family pass, and still sees a leak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu.models import FAST, FASTEST, OWN, gpu_model, reference_model
from gpu.test_families import config_of
from support.models import CONFIGS, make_model
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.errors import KernelError
from sft_cli.kernels import linear_attention
from sft_cli.recipe.schema import KernelsSection
from sft_cli.train.exactness import check_exactness

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("kernels", [FAST, FASTEST, OWN], ids=["fla", "flash_qla and liger", "own"])
@pytest.mark.parametrize("batching", ["packing", "padding"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_every_family_passes(family: str, batching: str, kernels: KernelsSection, mesh: DeviceMesh) -> None:
    model = make_model(family, config=config_of(family), mesh=mesh, compute_dtype=torch.bfloat16, kernels=kernels)
    found = check_exactness(model, batching=batching, compute_dtype=torch.bfloat16, device=GPU)
    print(f"\n{family}, {found.line()}")


def test_real_layers_pass_and_a_conv_across_the_boundary_is_seen(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_model()
    found = check_exactness(gpu_model(reference, mesh), batching="packing", compute_dtype=torch.bfloat16, device=GPU)
    print(f"\n{found.line()}")
    load = linear_attention.CONV["fla"]

    def crossing() -> Callable[..., Tensor]:
        conv = load()
        return lambda x, weight, bias, segments: conv(x, weight, bias, None)

    replaced: dict[str, Any] = {**linear_attention.CONV, "fla": crossing}
    monkeypatch.setattr(linear_attention, "CONV", replaced)
    with pytest.raises(KernelError, match="linear_attention"):
        check_exactness(gpu_model(reference, mesh), batching="packing", compute_dtype=torch.bfloat16, device=GPU)
