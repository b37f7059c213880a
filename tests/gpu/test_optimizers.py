"""The update's kernel makes what the CPU makes, in the memory it needs, and a step with it never waits."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from gpu.models import FAST, WORDS, config
from support.models import make_model
from support.rows import random_rows
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import DeviceType

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.optim.adamw import build_adamw
from sft_cli.optim.host_memory import HostMemory
from sft_cli.optim.in_backward import InBackward
from sft_cli.optim.low_precision import LowPrecisionAdamW
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep

SHAPES = [(24, 512), (6, 3, 192), (40, 1, 4), (513,)]
SLOTS = 512
VARIANTS = [
    (dtype, name, stochastic)
    for dtype, name, stochastic in product((torch.float32, torch.bfloat16), ("adamw", "adamw_8bit"), (False, True))
    if dtype == torch.bfloat16 or (name == "adamw_8bit" and not stochastic)
]


def trained(device: str, dtype: torch.dtype, name: str, stochastic: bool) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Weights and states after five steps, the third of which is bad; on the CPU."""
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in SHAPES]
    section = OptimizerSection(learning_rate=1e-2, weight_decay=0.1, name=name, stochastic_rounding=stochastic)
    optimizer = build_adamw(parameters, section)
    for step in range(5):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator) * (step + 0.1)
            parameter.grad = (gradient * (float("nan") if step == 2 else 1)).to(device, dtype)
        optimizer.found_inf = torch.tensor(float(step == 2), device=device)
        optimizer.step()
    states = [{name: value.cpu() for name, value in optimizer.state[parameter].items()} for parameter in parameters]
    return [parameter.detach().cpu() for parameter in parameters], states


@pytest.mark.parametrize(("dtype", "name", "stochastic"), VARIANTS)
def test_the_kernel_makes_what_the_cpu_makes(dtype: torch.dtype, name: str, stochastic: bool) -> None:
    """The same draws too; only where a rounding differs in the last bit may a code or a weight be the next one. Of a
    moment that a step then nearly cancels, that one code may be several."""
    found, expected = (trained(device, dtype, name, stochastic) for device in ("cuda", "cpu"))
    for weights, wanted in zip(found[0], expected[0], strict=True):
        differs = ((weights.double() - wanted.double()).abs() > 1e-5 * wanted.double().abs().clamp_min(1e-2)).double()
        assert differs.mean() < 0.01
    for state, wanted in zip(found[1], expected[1], strict=True):
        for key, value in state.items():
            if value.dtype == torch.float32:
                torch.testing.assert_close(value, wanted[key], rtol=1e-2 if "8bit" in name else 1e-5, atol=1e-7)
            else:
                apart = (value.int() - wanted[key].int()).abs()
                assert (apart > 0).double().mean() < 0.01
                assert (apart > 1).double().mean() < 0.001


def test_one_update_of_a_large_tensor_needs_no_memory_and_little_time() -> None:
    """A gigabyte of weights: 10.06 bytes a number at 4.8 TB/s would be 1.1 ms."""
    parameter = nn.Parameter(torch.zeros(32768, 16384, dtype=torch.bfloat16, device="cuda"))
    optimizer = build_adamw([parameter], OptimizerSection(name="adamw_8bit", stochastic_rounding=True))
    parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        optimizer.step()
    end.record()
    end.synchronize()
    milliseconds = begin.elapsed_time(end) / 10
    print(
        f"8-bit AdamW, bfloat16 weights, stochastic rounding: {milliseconds:.2f} ms for {parameter.numel():,} weights"
    )
    assert torch.cuda.max_memory_allocated() - before < 2**20
    assert milliseconds < 10


def test_moments_that_wait_in_host_memory_change_no_bit() -> None:
    """Sixteen layers of backward, five steps, updates in backward; more tensors than slots."""
    weights = {}
    for offload in (False, True):
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(16))).to("cuda", torch.bfloat16)
        section = OptimizerSection(name="adamw_8bit", stochastic_rounding=True, in_backward=True, offload=offload)
        waiting_in = HostMemory(torch.device("cuda"), 0) if offload else None
        optimizer = build_adamw(layers.parameters(), section, waiting_in=waiting_in)
        for parameter in layers.parameters():
            parameter.register_post_accumulate_grad_hook(partial(_update, optimizer))
        for step in range(5):
            generator = torch.Generator("cuda").manual_seed(step)
            inputs = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16, generator=generator)
            layers(inputs).float().square().sum().backward()
        states = optimizer.state_dict()["state"].values()
        weights[offload] = [*(p.cpu() for p in layers.parameters()), *(s["exp_avg"].cpu() for s in states)]
    assert all(torch.equal(here, there) for here, there in zip(weights[False], weights[True], strict=True))


def test_host_memory_can_be_had_again() -> None:
    """What a dropped optimizer had registered is not, or its place could not be registered once more."""
    for _ in range(3):
        layers = nn.Linear(8192, 8192, bias=False, device="cuda", dtype=torch.bfloat16)
        section = OptimizerSection(name="adamw_8bit", stochastic_rounding=True, in_backward=True, offload=True)
        build_adamw(layers.parameters(), section, waiting_in=HostMemory(torch.device("cuda"), 2 * 8192**2))


def _update(optimizer: LowPrecisionAdamW, parameter: nn.Parameter) -> None:
    groups = optimizer.param_groups
    optimizer.param_groups = [{**groups[0], "params": [parameter]}]
    optimizer.step()
    optimizer.param_groups = groups
    parameter.grad = None


@pytest.mark.usefixtures("mesh")
def test_in_backward_the_update_sums_the_gradients_squares() -> None:
    """One launch a large parameter; a gradient that is not finite leaves its block and shows in the norm."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).to("cuda", torch.bfloat16)
    squares: list[Tensor] = []
    for parameter in layers.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: squares.append(p.grad.double().square().sum()))
    section = OptimizerSection(learning_rate=1e-3, name="adamw_8bit", stochastic_rounding=True)
    optimizer = build_adamw(layers.parameters(), section)
    in_backward = InBackward(optimizer)
    inputs = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        squares.clear()
        layers(inputs).float().square().sum().backward()
        in_backward.finish()
        found, expected = float(in_backward.grad_norm()), float(torch.stack(squares).sum().sqrt())
        assert found == pytest.approx(expected, rel=1e-6)
    parameter = next(layers.parameters())
    before = parameter.detach().clone()
    parameter.grad = torch.ones_like(parameter)
    parameter.grad[3, 300] = float("nan")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        in_backward._update(0, parameter)
    launched = [event.name for event in profiler.events() if event.device_type == DeviceType.CUDA]
    print(f"\nlaunched by one update in backward: {', '.join(launched)}")
    assert len(launched) == 1
    assert not in_backward.grad_norm().isfinite()
    changed = (parameter != before).view(1024, 4, 256).any(dim=-1)
    assert not changed[3, 1]
    assert changed.sum() == changed.numel() - 1


@pytest.fixture(params=[False, True], ids=["ordinary", "in backward"])
def train_step(mesh: DeviceMesh, request: pytest.FixtureRequest) -> TrainStep:
    model = make_model(
        "qwen3_5",
        config=config(),
        mesh=mesh,
        compute_dtype=torch.bfloat16,
        master_dtype=torch.bfloat16,
        kernels=FAST,
        checkpointing="full",
    )
    section = OptimizerSection(learning_rate=1e-3, name="adamw_8bit", stochastic_rounding=True)
    optimizer = build_adamw(model.parameters(), section)
    in_backward = InBackward(optimizer) if request.param else None
    return TrainStep(model, optimizer, lambda step: 1e-3, None, torch.device("cuda", 0), in_backward=in_backward)


def batch(lengths: list[int]) -> Batch:
    return pack_rows(random_rows(lengths, words=WORDS), list(range(len(lengths))), SLOTS).pinned()


@pytest.mark.usefixtures("no_waiting")
def test_a_step_never_waits_for_the_device(train_step: TrainStep) -> None:
    train_step.rehearse(batch([300, 100]))
    for step in (1, 2):
        train_step(step, [batch([300, 100])], 0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    result = train_step(3, [batch([17] * 12)], 0)
    torch.cuda.set_sync_debug_mode("default")
    assert result.read().first_bad_step == 0


def test_the_loss_falls_on_one_batch(train_step: TrainStep) -> None:
    losses = [train_step(step, [batch([300, 100])], 0).read().loss for step in range(1, 21)]
    assert losses[-1] < 0.7 * losses[0]
