from __future__ import annotations

import pytest
import torch
from support.models import make_model
from torch import nn

from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.clipping import clip_gradients
from sft_cli.recipe.schema import OptimizerSection


def test_decay_spares_norms_biases_and_the_gates_of_the_delta_rule() -> None:
    model = make_model("qwen3_5")
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed, spared = build_adamw(model.parameters(), OptimizerSection(weight_decay=0.1)).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    spared_names = {names[parameter] for parameter in spared["params"]}
    assert {name.rpartition(".")[2] for name in spared_names} == {"weight", "A_log", "dt_bias"}
    assert all("norm" in name or name.endswith(("A_log", "dt_bias")) for name in spared_names)
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


@pytest.mark.parametrize("max_norm", [None, 1.0, 100.0])
def test_clipping_returns_the_norm_before(max_norm: float | None) -> None:
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(3))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert clip_gradients(parameters, max_norm).item() == pytest.approx(5.0)
    scale = 0.2 if max_norm == 1.0 else 1.0
    assert parameters[1].grad.item() == pytest.approx(4.0 * scale, rel=1e-5)


def test_the_norm_of_bfloat16_gradients_keeps_its_digits() -> None:
    parameter = nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16))
    parameter.grad = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    norm = clip_gradients([parameter], None)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(parameter.grad.double().norm().item(), rel=1e-6)


def test_the_norm_of_a_broken_gradient_is_not_finite() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, float("nan")])
    assert not clip_gradients([parameter], 1.0).isfinite()
