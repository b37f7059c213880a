"""Linear layers of one input learn what they did apart, and no kernel adds up their gradients of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from support.models import CONFIGS, REFERENCES, WORDS, make_model
from support.rows import random_rows
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sft_cli.data.batch import pack_rows
from sft_cli.kernels import joint_linear
from sft_cli.kernels.joint_linear import NARROW, install

WIDTHS = {"first": NARROW + 8, "second": NARROW + 40, "third": 5, "fourth": 7}
INPUTS, TOKENS = 24, 9


class Block(nn.Module):
    """Layers of one input, some with a bias, and something between their calls."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        for name, width in WIDTHS.items():
            self.add_module(name, nn.Linear(INPUTS, width, bias=bias and name != "second"))

    def forward(self, x: Tensor) -> Tensor:
        x = x.tanh()
        return sum(((index + 1) * getattr(self, name)(x)).sin().sum() for index, name in enumerate(WIDTHS))  # type: ignore[return-value]


class Operators(TorchDispatchMode):
    """Counts what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.counts[function.overloadpacket.__name__] += 1
        return function(*arguments, **(options or {}))


def make_block(*, joint: bool, bias: bool = False, change: Callable[[Block], object] = lambda block: None) -> Block:
    torch.manual_seed(0)
    block = Block(bias)
    change(block)
    if joint:
        install([block], [tuple(WIDTHS)])
    return block


def gradients(block: nn.Module, *, needs_x: bool = True) -> dict[str, Tensor | None]:
    x = torch.randn(2, TOKENS, INPUTS, generator=torch.Generator().manual_seed(1)).requires_grad_(needs_x)
    out = block(x)
    out.backward()
    return {"out": out.detach(), "x": x.grad, **{name: p.grad for name, p in block.named_parameters()}}


def assert_same(found: dict[str, Tensor | None], expected: dict[str, Tensor | None], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        one = found[name]
        assert (one is None) == (right is None), name
        if one is not None:
            assert one.stride() == right.stride(), name
            torch.testing.assert_close(one, right, msg=lambda said, name=name: f"{name}: {said}", **tolerance)


@pytest.mark.parametrize("needs_x", [True, False])
@pytest.mark.parametrize("frozen", [[], ["first.weight"], ["third.weight", "fourth.bias"]])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_separate_layers(bias: bool, frozen: list[str], needs_x: bool) -> None:
    def freeze(block: Block) -> None:
        for name, parameter in block.named_parameters():
            parameter.requires_grad_(name not in frozen)

    found, expected = (gradients(make_block(joint=j, bias=bias, change=freeze), needs_x=needs_x) for j in (True, False))
    assert_same(found, expected, rtol=1e-5, atol=1e-5)


def test_under_autocast_too_with_one_cast_of_the_input() -> None:
    made, casts = {}, {}
    for joint in (True, False):
        block = make_block(joint=joint, bias=True)
        with Operators() as operators, torch.autocast("cpu", torch.bfloat16):
            made[joint] = gradients(block)
        casts[joint] = operators.counts["_to_copy"]
    assert_same(made[True], made[False], rtol=2**-6, atol=2**-6)
    assert all(value.dtype == torch.float32 for name, value in made[True].items() if name != "out")  # type: ignore[union-attr]
    # Of the input, forward, and of its gradient, backward.
    assert casts[False] - casts[True] == 2 * (len(WIDTHS) - 1)


def test_no_gradient_is_added_up_by_a_kernel_of_its_own() -> None:
    counts = {}
    for joint in (True, False):
        block = make_block(joint=joint)
        with Operators() as operators:
            gradients(block)
        counts[joint] = operators.counts
    assert counts[False]["add"] - counts[True]["add"] == len(WIDTHS) - 1
    # Backward's two narrow ones are one product: three of the input's gradient, and three of the weights'.
    assert (counts[True]["mm"], counts[True]["addmm_"], counts[True]["cat"]) == (2 * len(WIDTHS), 2, 2)


def test_an_output_that_nothing_uses_has_no_gradient() -> None:
    class Some(Block):
        def forward(self, x: Tensor) -> Tensor:
            self.first(x)
            return self.second(x).square().sum()

    found, expected = Some(bias=False), Some(bias=False)
    expected.load_state_dict(found.state_dict())
    install([found], [tuple(WIDTHS)])
    assert_same(gradients(found), gradients(expected), rtol=1e-5, atol=1e-5)


def test_another_input_or_a_call_from_elsewhere_is_computed() -> None:
    class Crossed(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.first(x).sum() + self.second(x + 1).sum() + self.third(x).sum() + self.third(x).sum()

    found, expected = Crossed(bias=False), Crossed(bias=False)
    expected.load_state_dict(found.state_dict())
    install([found], [tuple(WIDTHS)])
    assert_same(gradients(found), gradients(expected), rtol=1e-5, atol=1e-5)
    x = torch.randn(3, INPUTS)
    for _ in range(2):
        assert torch.equal(found.fourth(x), expected.fourth(x))
        with torch.no_grad():
            for block in (found, expected):
                block.fourth.weight.add_(1)


def test_nothing_outlives_a_call_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[joint_linear.Group] = []
    own = joint_linear.Group.install
    monkeypatch.setattr(joint_linear.Group, "install", lambda self, module: (made.append(self), own(self, module)))

    class Fails(Block):
        def forward(self, x: Tensor) -> Tensor:
            self.first(x)
            raise ArithmeticError

    block = Fails(bias=False)
    install([block], [tuple(WIDTHS)])
    with pytest.raises(ArithmeticError):
        block(torch.randn(3, INPUTS))
    assert (made[0]._x, made[0]._made, made[0]._is_open) == (None, {}, False)


def test_layers_with_a_forward_of_their_own_are_left_alone() -> None:
    block = Block(bias=False)
    block.first.forward = own = lambda x: x[..., :1]  # type: ignore[method-assign,assignment]
    install([block], [tuple(WIDTHS), ("first", "not there")])
    assert block.first.forward is own
    assert all("forward" in vars(getattr(block, name)) for name in WIDTHS)
    lone = Block(bias=False)
    for name in ("first", "second", "third"):
        getattr(lone, name).forward = own
    install([lone], [tuple(WIDTHS)])
    assert "forward" not in vars(lone.fourth)


@pytest.mark.parametrize(
    ("family", "checkpointing"),
    [*((family, "none") for family in CONFIGS), *product(("qwen3_5", "gemma3"), ("full", "selective"))],
)
def test_a_model_learns_what_it_did(family: str, checkpointing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pack_rows(random_rows([65, 2, 30], words=WORDS), [0, 1, 2], 100)

    def learnt() -> tuple[Tensor, dict[str, Tensor | None], Counter[str]]:
        model = make_model(family, kernels=REFERENCES, checkpointing=checkpointing)
        with Operators() as operators:
            loss = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
            (loss / batch.supervised_tokens).backward()
        return loss.detach(), {name: p.grad for name, p in model.named_parameters()}, operators.counts

    found_loss, found, found_counts = learnt()
    monkeypatch.setattr(joint_linear, "install", lambda modules, groups: None)
    expected_loss, expected, expected_counts = learnt()
    assert torch.equal(found_loss, expected_loss)
    assert_same(found, expected, rtol=1e-4, atol=1e-5)
    saved = expected_counts["add"] - found_counts["add"]
    model = make_model(family)
    delta_net, attention, mlps = len(model.delta_net_blocks), 0, 0
    for module in model.modules():
        attention += hasattr(module, "q_proj")
        mlps += isinstance(getattr(module, "gate_proj", None), nn.Linear)
    per_block = 1 if family == "qwen3_next" else 3
    assert saved == delta_net * per_block + 2 * attention + mlps
