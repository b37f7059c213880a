"""What float8's rounding may do: what random noise of its size does. For a model's gradients, and layer by layer.

A model's gradients can't tell whether float8 works: what one layer rounds, the next ones amplify, the more the wider
they are (docs/float8.md), until all rounding at once is a third of a gradient, and a fault in one layer no more than
that. So there are two measures. Of each layer with the input that it has in the model, its output and gradients, where
nothing is amplified: a wrong scale or operand is many times the rounding. And of all gradients, next to those that a
model with noise has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from sft_cli.kernels.float8 import Float8
from sft_cli.kernels.linear import is_float8
from sft_cli.kernels.regions import Regions
from sft_cli.model.language_model import LanguageModel
from sft_cli.worker.assemble import kernel_layers
from support.tensors import own

E4M3, E5M2 = 0.0265, 0.0527
"""What rounding to 3 and 2 bits of mantissa changes a tensor by, relative (2-norms): seen of activations, weights and
gradients alike, with one scale a tensor or a row."""
WITHIN = 1.25
"""Of a layer: as factor and divisor of what noise does. 0.97 to 1.04 of it were seen, emulated on a CPU."""
Product = Callable[[Tensor, Tensor], Tensor]
Gap = dict[str, float]
"""Relative distances: of the output, of the gradient of the input, and of each weight's."""


class Noise(Float8):
    """In place of a recipe: products in the compute dtype, of operands that carry noise as large as its rounding.

    The same noise at each call, so a recomputed layer is the one that ran forward, and layers of one input see one.
    """

    def __init__(self, recipe: str) -> None:
        super().__init__(recipe, emulate=True)
        self.recipe = f"noise as {recipe}"
        self._of_gradient = E5M2 if recipe == "tensorwise" else E4M3

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = self.product(x, weight)
        return out if bias is None else out + bias.to(out.dtype)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Without a bias."""
        out: Tensor = _NoisyLinear.apply(x, weight, self._of_gradient)
        return out


class _NoisyLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, of_gradient: float) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        ctx.of_gradient = of_gradient
        return noisy(x, E4M3, 1) @ noisy(weight.to(x.dtype), E4M3, 2).t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        gradient = noisy(gradient, ctx.of_gradient, 3)
        of_weight = gradient.t() @ noisy(x, E4M3, 1)
        return gradient @ noisy(weight.to(x.dtype), E4M3, 2), of_weight.to(weight.dtype), None


def noisy(x: Tensor, size: float, seed: int) -> Tensor:
    """Each number times 1 + noise, uniform, of this size on average (root of the mean square)."""
    generator = torch.Generator(x.device).manual_seed(seed)
    noise = torch.rand(x.shape, generator=generator, device=x.device).mul_(2).sub_(1)
    return (x * noise.mul_(size * 3**0.5).add_(1)).to(x.dtype)


class ByLayer:
    """Every float8 layer of a model: a linear layer, or a SwiGLU MLP as a whole.

    Args:
        model: on one rank.
    """

    def __init__(self, model: LanguageModel, regions: Regions) -> None:
        layers = kernel_layers(model)
        linears = {name: linear for name, linear in layers.linears.items() if is_float8(linear, regions)}
        mlps = {f"mlp {index}": mlp for index, mlp in enumerate(layers.swiglu)}
        self._modules: dict[str, nn.Module] = {**linears, **mlps}
        self._blocks = [block for block in model.blocks if isinstance(block, FSDPModule)]
        # Shards: gathered, a weight may be in float8 already.
        self._masters = {name: [own(w).detach() for w in _weights(module)] for name, module in self._modules.items()}
        self._inputs: dict[str, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, the model runs once: those layers that are called keep their input."""

        def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            return lambda _, arguments: self._inputs.__setitem__(name, arguments[0].detach().clone())

        handles = [module.register_forward_pre_hook(keep(name)) for name, module in self._modules.items()]
        yield
        for handle in handles:
            handle.remove()

    def gaps(self, noise: Noise) -> Iterator[tuple[str, Gap, Gap]]:
        """Of each layer that was called: how far it is from the compute dtype's products, and how far noise is."""
        for block in self._blocks:
            block.unshard()
        for name, x in self._inputs.items():
            module, masters = self._modules[name], self._masters[name]
            weights = [w.to(x.dtype).requires_grad_() for w in masters]
            plain = _results(partial(_reference, module, weights, F.linear), x, weights)
            noisily = _results(partial(_reference, module, weights, noise.product), x.flatten(0, -2), weights)
            found = _results(module, x, _weights(module))
            yield name, _gap(found, plain), _gap(noisily, plain)
        for block in self._blocks:
            block.reshard()


def _weights(module: nn.Module) -> list[Tensor]:
    linears = [module] if isinstance(module, nn.Linear) else [module.gate_proj, module.up_proj, module.down_proj]
    assert all(linear.bias is None for linear in linears)
    return [linear.weight for linear in linears]  # type: ignore[misc]


def _reference(module: nn.Module, weights: list[Tensor], product: Product, x: Tensor) -> Tensor:
    if isinstance(module, nn.Linear):
        return product(x, weights[0])
    gate, up, down = weights
    return product(F.silu(product(x, gate)) * product(x, up), down)


def _results(run: Callable[[Tensor], Tensor], x: Tensor, weights: list[Tensor]) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    out = run(x)
    given = torch.randn(out.shape, generator=torch.Generator(x.device).manual_seed(4), device=x.device).to(out.dtype)
    of_x, *of_weights = torch.autograd.grad(out, [x, *weights], given)
    named = {f"gradient of weight {index}": gradient for index, gradient in enumerate(of_weights)}
    return {"output": out.detach(), "gradient of the input": of_x, **named}


def _gap(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Gap:
    assert found.keys() == expected.keys()
    return {what: relative(tensor.reshape(expected[what].shape), expected[what]) for what, tensor in found.items()}


def relative(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def assert_rounding(found: float, noise: float, what: str, *, within: float = WITHIN) -> None:
    """No more off than noise as large as the rounding, and no less: both are made of the same number of roundings."""
    said = f"{what}: off by {found:.4f}, and noise of the size of float8's rounding by {noise:.4f}"
    assert noise / within < found < noise * within, said


def assert_each_layer_rounds(layers: ByLayer, recipe: str, *, count: int) -> None:
    """Of layers that `watching` saw.

    Args:
        count: how many there are.
    """
    gaps = list(layers.gaps(Noise(recipe)))
    assert len(gaps) == count
    for name, found, noise in gaps:
        for what in found:
            assert_rounding(found[what], noise[what], f"{name}, {what}")
