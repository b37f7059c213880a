"""AdamW with bfloat16 weights or 8-bit moments, against AdamW written down plainly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.low_precision import LowPrecisionAdamW
from sft_cli.recipe.schema import OptimizerSection

SHAPES = [(24, 512), (6, 3, 192), (40, 1, 4), (512,)]
"""Two with 8-bit moments, in blocks of 256 and of 64; two that are too narrow."""
STEPS = 8
LEARNING_RATE, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1


def make_parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def gradients(dtype: torch.dtype) -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        yield [torch.randn(shape, generator=generator).mul(0.1 + step).to(dtype) for shape in SHAPES]


def make_optimizer(parameters: list[nn.Parameter], **options: Any) -> Any:
    section = OptimizerSection(learning_rate=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, **options)
    return build_adamw(parameters, section)


def take_steps(optimizer: Any, parameters: list[nn.Parameter], steps: Iterator[list[Tensor]]) -> None:
    for step_gradients in steps:
        for parameter, gradient in zip(parameters, step_gradients, strict=True):
            parameter.grad = gradient
        optimizer.found_inf = torch.zeros(())
        optimizer.step()


def plain_adamw(weights: Tensor, gradients: list[Tensor], decay: float) -> Tensor:
    """float64, as the paper has it."""
    weights = weights.double()
    first = second = torch.zeros_like(weights)
    for step, gradient in enumerate(gradients, start=1):
        gradient = gradient.double()
        first = BETAS[0] * first + (1 - BETAS[0]) * gradient
        second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
        update = (first / (1 - BETAS[0] ** step)) / ((second / (1 - BETAS[1] ** step)).sqrt() + EPS)
        weights = weights - LEARNING_RATE * (update + decay * weights)
    return weights


def expected(dtype: torch.dtype) -> list[Tensor]:
    steps = list(gradients(dtype))
    return [
        plain_adamw(parameter.detach(), [step[at] for step in steps], DECAY if parameter.ndim > 1 else 0)
        for at, parameter in enumerate(make_parameters(dtype))
    ]


def test_8_bit_moments_make_nearly_the_updates_of_float32() -> None:
    parameters = make_parameters(torch.float32)
    before = [parameter.detach().clone() for parameter in parameters]
    take_steps(make_optimizer(parameters, name="adamw_8bit"), parameters, gradients(torch.float32))
    for parameter, old, wanted in zip(parameters, before, expected(torch.float32), strict=True):
        error = (parameter - wanted).norm() / (wanted - old).norm()
        is_narrow = parameter.ndim == 1 or parameter[0].numel() < 64
        assert error < (1e-5 if is_narrow else 0.05)


def test_bfloat16_weights_with_stochastic_rounding_go_where_float32_would() -> None:
    """Each weight is off by roundings; the mean of thousands by nearly nothing."""
    parameters = make_parameters(torch.bfloat16)
    before = [parameter.detach().clone() for parameter in parameters]
    take_steps(make_optimizer(parameters, stochastic_rounding=True), parameters, gradients(torch.bfloat16))
    for parameter, old, wanted in zip(parameters, before, expected(torch.bfloat16), strict=True):
        reached, way = parameter.detach().double(), wanted - old.double()
        assert (((reached - old) * way).sum() / way.square().sum()).item() == pytest.approx(1, abs=0.05)
        assert (reached - wanted).abs().max() < STEPS * 2**-7 * old.abs().max()


@pytest.mark.parametrize(("stochastic", "moved"), [(False, 0.0), (True, 100e-5)])
def test_at_a_small_learning_rate_only_stochastic_rounding_moves_bfloat16(stochastic: bool, moved: float) -> None:
    """The number of the field notes: w = 1, 100 steps at 1e-5."""
    parameter = nn.Parameter(torch.ones(64, 1024, dtype=torch.bfloat16))
    optimizer = build_adamw([parameter], OptimizerSection(learning_rate=1e-5, stochastic_rounding=stochastic))
    for _ in range(100):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert 1 - parameter.double().mean().item() == pytest.approx(moved, rel=0.05)


def test_moments_of_bfloat16_weights_are_float32() -> None:
    optimizer = make_optimizer(make_parameters(torch.bfloat16))
    for state in optimizer.state.values():
        assert {value.dtype for value in state.values()} == {torch.float32}


def test_a_transposed_weight_is_refused_and_not_mixed_up_with_its_gradient() -> None:
    with pytest.raises(AssertionError, match="in the order in which they are kept"):
        make_optimizer([nn.Parameter(torch.zeros(512, 24).t())], name="adamw_8bit")


def test_8_bit_moments_take_a_quarter_and_their_scales() -> None:
    parameter = nn.Parameter(torch.zeros(16, 512))
    state = make_optimizer([parameter], name="adamw_8bit").state[parameter]
    size = sum(value.nbytes for name, value in state.items() if name != "step")
    assert size == parameter.numel() * (2 + 2 * 4 / 256)


class Made(TorchDispatchMode):
    """Counts what is made inside."""

    size_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in given:
            self.size_bytes += made.nbytes
        return made


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {"name": "adamw_8bit"}),
        (torch.bfloat16, {"stochastic_rounding": True}),
        (torch.bfloat16, {"name": "adamw_8bit", "stochastic_rounding": True}),
    ],
)
class TestEach:
    def test_a_bad_step_changes_nothing(self, dtype: torch.dtype, options: dict[str, Any]) -> None:
        parameters = make_parameters(dtype)
        optimizer = make_optimizer(parameters, **options)
        take_steps(optimizer, parameters, gradients(dtype))
        before = [value.clone() for value in everything(optimizer, parameters)]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, float("nan"))
        optimizer.found_inf = torch.ones(())
        optimizer.step()
        for old, new in zip(before, everything(optimizer, parameters), strict=True):
            assert torch.equal(old, new)

    def test_goes_on_from_its_saved_state(self, dtype: torch.dtype, options: dict[str, Any]) -> None:
        steps = list(gradients(dtype))
        trained = make_parameters(dtype)
        optimizer = make_optimizer(trained, **options)
        take_steps(optimizer, trained, iter(steps[:4]))
        resumed = [nn.Parameter(parameter.detach().clone()) for parameter in trained]
        fresh = make_optimizer(resumed, **options)
        fresh.load_state_dict(deepcopy(optimizer.state_dict()))
        take_steps(optimizer, trained, iter(steps[4:]))
        take_steps(fresh, resumed, iter(steps[4:]))
        for old, new in zip(everything(optimizer, trained), everything(fresh, resumed), strict=True):
            assert old.dtype == new.dtype
            assert torch.equal(old, new)

    def test_loading_its_own_tensors_makes_no_others(self, dtype: torch.dtype, options: dict[str, Any]) -> None:
        # As a resumed run does, whose GPU may have no room for moments in the weights' dtype beside those in 8 bits.
        optimizer = make_optimizer(make_parameters(dtype), **options)
        state = optimizer.state_dict()
        with Made() as made:
            optimizer.load_state_dict(state)
        steps = len(SHAPES) * 4
        assert made.size_bytes <= steps

    def test_large_tensors_are_updated_in_parts(
        self, dtype: torch.dtype, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = []
        for numbers_at_once in (1 << 22, 512):
            monkeypatch.setattr("sft_cli.optim.update.NUMBERS_AT_ONCE", numbers_at_once)
            parameters = make_parameters(dtype)
            optimizer = make_optimizer(parameters, **options)
            take_steps(optimizer, parameters, gradients(dtype))
            found.append(everything(optimizer, parameters))
        for whole, parts in zip(*found, strict=True):
            assert torch.equal(whole, parts)


def everything(optimizer: LowPrecisionAdamW, parameters: list[nn.Parameter]) -> list[Tensor]:
    return [*parameters, *(value for state in optimizer.state.values() for value in state.values())]


def test_seeds_differ_and_repeat() -> None:
    def weights(seed: int) -> Tensor:
        parameter = nn.Parameter(torch.ones(4, 512, dtype=torch.bfloat16))
        optimizer = build_adamw([parameter], OptimizerSection(stochastic_rounding=True), seed=seed)
        for _ in range(20):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        return parameter.detach()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def loss_after_training(make: Callable[[Iterator[nn.Parameter]], Any], dtype: torch.dtype) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(dtype)
    inputs = torch.randn(256, 64)
    targets = (inputs @ torch.randn(64, 64) / 8).sin()
    optimizer = make(model.parameters())
    for _ in range(40):
        loss = (model(inputs.to(dtype)).float() - targets).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def test_8_bit_trains_to_nearly_the_float32_loss() -> None:
    float32 = loss_after_training(lambda p: build_adamw(p, OptimizerSection(learning_rate=3e-3)), torch.float32)
    eight_bit = loss_after_training(
        lambda p: build_adamw(p, OptimizerSection(learning_rate=3e-3, name="adamw_8bit")), torch.float32
    )
    assert float32 < 0.1
    assert eight_bit == pytest.approx(float32, rel=0.05)
