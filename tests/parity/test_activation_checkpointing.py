"""Every way of keeping or recomputing activations gives the gradients of keeping them all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity.test_ranks import packs, share, whole
from support.models import make_sharded_model
from support.ranks import on_ranks
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch
from sft_cli.model.language_model import LanguageModel
from sft_cli.parallel import activation_offload
from sft_cli.parallel.reduction import GradientReduction

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "none, offloaded": {"offload": True},
    "full": {"checkpointing": "full"},
    "full, offloaded": {"checkpointing": "full", "offload": True},
    "full, 1 layer, offloaded": {"checkpointing": "full", "checkpointed_layers": 1, "offload": True},
    "full, 1 layer, others selective": {"checkpointing": "full", "checkpointed_layers": 1, "others": "selective"},
    "full, 1 layer, others selective, offloaded": {
        "checkpointing": "full", "checkpointed_layers": 1, "others": "selective", "offload": True,
    },
    "selective": {"checkpointing": "selective"},
    "selective, 1 layer": {"checkpointing": "selective", "checkpointed_layers": 1},
    "selective, offloaded": {"checkpointing": "selective", "offload": True},
}  # fmt: skip
FAMILIES = ["qwen3_5", "gemma3", "qwen3_next"]
"""Gemma has norms behind its MLPs, Qwen3-Next experts."""


@pytest.fixture(scope="module")
def unsharded() -> dict[str, Any]:
    return {family: gradients(*make_sharded_model(family), packs()) for family in FAMILIES}


# Of two ranks `test_sharding.py` has every mode beside everything else.
@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.long)])
def sharded(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return on_ranks(request.param, experiments)


def experiments(mesh: DeviceMesh) -> dict[str, Any]:
    activation_offload.SMALLEST_BYTES = 1  # in a process of its own
    return {
        f"{family}: {name}": gradients(*make_sharded_model(family, mesh=mesh, **setting), share(packs(), mesh))
        for family in FAMILIES
        for name, setting in SETTINGS.items()
    }


def gradients(
    model: LanguageModel, reduction: GradientReduction, micro_batches: list[Batch]
) -> dict[str, torch.Tensor]:
    """Whole, summed over micro-batches and ranks."""
    for batch in micro_batches:
        model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets).backward()
    reduction.finish()
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_of_every_mode(sharded: Any, unsharded: Any, family: str, name: str) -> None:
    for rank in sharded:
        found = rank[f"{family}: {name}"]
        assert found.keys() == unsharded[family].keys()
        for parameter, expected in unsharded[family].items():
            difference = (found[parameter] - expected).norm() / expected.norm().clamp_min(1e-6)
            assert difference < 1e-6, parameter


@pytest.mark.parametrize("name", SETTINGS)
def test_a_mode_changes_no_bit(sharded: Any, name: str) -> None:
    """Against `none` on the same ranks, where sums come in the same order."""
    for rank in sharded:
        for family in FAMILIES:
            none = rank[f"{family}: none"]
            for parameter, gradient in rank[f"{family}: {name}"].items():
                assert torch.equal(gradient, none[parameter]), (family, parameter)
