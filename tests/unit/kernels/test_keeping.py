"""What a compiled region keeps between forward and backward."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from sft_cli.kernels.float8 import Float8
from sft_cli.kernels.linear import install_compiled_mlp, install_float8
from sft_cli.kernels.regions import Regions

AOT = "aot_eager_decomp_partition"
"""All of torch.compile but the generated code."""
TOKENS, HIDDEN, INTERMEDIATE = 64, 32, 96
RECIPES = [None, "tensorwise", "rowwise"]


class SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)


def regions_of(recipe: str | None, backend: str = AOT, *, lengths_vary: bool = False) -> Regions:
    if recipe is not None:
        pytest.importorskip("torchao")
    # Not emulated: that keeps float32 copies in float8's place, and is not what a GPU runs.
    float8 = None if recipe is None else Float8(recipe, emulate=False)
    return Regions(compiles=True, float8=float8, backend=backend, smallest_side=HIDDEN, lengths_vary=lengths_vary)


def layer(make: Callable[[], nn.Module], recipe: str | None, backend: str = AOT) -> nn.Module:
    torch.manual_seed(0)
    module = make().to(torch.bfloat16)
    regions = regions_of(recipe, backend)
    if isinstance(module, SwiGlu):
        install_compiled_mlp([module], regions, lambda function: function)
    else:
        install_float8([module], regions)  # type: ignore[list-item]
    return module


def kept_by(module: nn.Module) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each tensor that forward keeps beside weights and numbers, once each; backward runs, too."""
    x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    weights = {weight.data_ptr() for weight in module.parameters()}
    saved: list[Tensor] = []
    with saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        out = module(x)
    out.float().square().sum().backward()
    assert x.grad is not None
    own = {tensor.data_ptr(): tensor for tensor in saved if tensor.dim() and tensor.data_ptr() not in weights}
    assert x.data_ptr() in own
    return sorted(((tuple(tensor.shape), tensor.dtype) for tensor in own.values()), key=str)


INPUT = ((TOKENS, HIDDEN), torch.bfloat16)


@pytest.mark.parametrize("backend", [AOT, pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_mlp_keeps_its_input_gate_and_up(recipe: str | None, backend: str) -> None:
    """And not their product, nor anything in float8, which is made again of those."""
    wide = ((TOKENS, INTERMEDIATE), torch.bfloat16)
    assert kept_by(layer(SwiGlu, recipe, backend)) == [INPUT, wide, wide]


@pytest.mark.parametrize("backend", [AOT, pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("recipe", RECIPES[1:])
def test_a_float8_layer_keeps_its_input_as_it_came(recipe: str, backend: str) -> None:
    """Others keep it anyhow, or it is computed again; float8 would be one copy more for each layer that reads it."""
    assert kept_by(layer(lambda: nn.Linear(HIDDEN, INTERMEDIATE, bias=False), recipe, backend)) == [INPUT]


def test_it_computes_the_same_under_autocast_and_without_gradients() -> None:
    mlp, plain = layer(SwiGlu, None).float(), SwiGlu()
    plain.load_state_dict(mlp.state_dict())
    x = torch.randn(1, TOKENS, HIDDEN)
    with torch.autocast("cpu", torch.bfloat16):
        found = mlp(x)
        expected = plain.down_proj(F.silu(plain.gate_proj(x)) * plain.up_proj(x))
        with torch.no_grad():
            assert torch.equal(mlp(x), found)
    torch.testing.assert_close(found, expected)
    weights = list(mlp.parameters()), list(plain.parameters())
    gradients = [torch.autograd.grad(out.sum(), own) for out, own in zip((found, expected), weights, strict=True)]
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("recipe", RECIPES)
def test_padded_lengths_share_one_variant(recipe: str | None) -> None:
    from torch._dynamo.utils import counters

    mlp = SwiGlu().to(torch.bfloat16)
    install_compiled_mlp([mlp], regions_of(recipe, lengths_vary=True), lambda function: function)
    before = counters["stats"]["unique_graphs"]
    for length in (32, 48, 64, 272):
        mlp(torch.randn(1, length, HIDDEN, dtype=torch.bfloat16, requires_grad=True)).float().sum().backward()
    assert counters["stats"]["unique_graphs"] == before + 1


def test_products_are_not_repeated() -> None:
    """Three in forward, six in backward."""
    counted: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        def count(inner: Any, _: Any) -> Any:
            counted.append(sum(node.target is torch.ops.aten.mm.default for node in inner.graph.nodes))
            return make_boxed_func(inner.forward)

        compiler = aot_autograd(fw_compiler=count, partition_fn=min_cut_rematerialization_partition)
        return compiler(graph, inputs)

    mlp = layer(SwiGlu, None, backend)  # type: ignore[arg-type]
    kept_by(mlp)
    assert counted == [3, 6]


@pytest.mark.long
def test_what_is_compiled_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the next run: AOT autograd's cache has it."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for outcome in ("autograd_cache_miss", "autograd_cache_hit"):
        counters.clear()
        torch._dynamo.reset()
        kept_by(layer(SwiGlu, None, "inductor"))
        assert counters["aot_autograd"][outcome] == 1
        assert counters["aot_autograd"]["autograd_cache_bypass"] == 0


def test_torchs_warning_of_contexts_is_not_shown() -> None:
    logger, heard = logging.getLogger("torch._higher_order_ops.wrap"), logging.Handler()
    shown: list[str] = []
    heard.emit = lambda record: shown.append(record.getMessage())  # type: ignore[method-assign]
    regions_of(None).region("mlp", lambda x: x, lambda x: x, [None], multiplies=True)
    logger.addHandler(heard)
    try:
        logger.warning("Detected that context_fn is passed to torch.utils.checkpoint under torch.compile.")
        logger.warning("another one")
    finally:
        logger.removeHandler(heard)
    assert shown == ["another one"]
