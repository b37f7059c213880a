"""What each mode runs again, what it keeps, and that nothing outlives its backward."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.models import REFERENCES, WORDS, make_model
from support.rows import random_rows
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm
from transformers.models.qwen3_next import modeling_qwen3_next

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.kernels import attention, linear_attention
from sft_cli.model.language_model import LanguageModel
from sft_cli.parallel.kept_calls import InPlace, Tape, kept

NORMS = {"qwen3_5": Qwen3_5RMSNorm, "llama": LlamaRMSNorm, "gemma3": Gemma3RMSNorm}


def batch() -> Batch:
    return pack_rows(random_rows([20, 44, 64, 5], words=WORDS), [0, 1, 2, 3], 140)


def loss_of(model: LanguageModel) -> Tensor:
    pack = batch()
    return model(pack.model_inputs(), pack.supervised_positions, pack.supervised_targets)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often matrix products, attention, delta rules and norms have run, of models that are made from now on."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **options)

        return count

    monkeypatch.setattr(F, "linear", counting("products", F.linear))
    for norm in NORMS.values():
        monkeypatch.setattr(norm, "forward", counting("norms", norm.forward))
    experts = modeling_qwen3_next.Qwen3NextExperts
    monkeypatch.setattr(experts, "forward", counting("experts", experts.forward))
    rule, sdpa = linear_attention.LINEAR_ATTENTION["torch"](), attention.ATTENTION["sdpa"]()
    monkeypatch.setitem(linear_attention.LINEAR_ATTENTION, "torch", lambda: counting("delta rules", rule))
    monkeypatch.setitem(attention.ATTENTION, "sdpa", lambda: counting("attention", sdpa))
    return calls


def step_counts(calls: Counter[str], **options: Any) -> Counter[str]:
    """Of one forward and backward."""
    model = make_model(kernels=REFERENCES, **options)
    calls.clear()
    loss_of(model).backward()
    return Counter(calls)


@pytest.mark.parametrize("family", ["qwen3_5", "llama", "gemma3"])
def test_selective_runs_cheap_things_again_and_nothing_else(counted: Counter[str], family: str) -> None:
    once = step_counts(counted, family=family)
    selective = step_counts(counted, family=family, checkpointing="selective")
    full = step_counts(counted, family=family, checkpointing="full")
    assert once["products"] > 0
    assert once["attention"] + once["delta rules"] == len(make_model(family).blocks)
    for name in ("products", "attention", "delta rules"):
        assert selective[name] == once[name], name
        assert full[name] == 2 * once[name] or name == "products"
    # A recomputation ends before the last product of a layer, which nothing needs again.
    assert full["products"] > 1.5 * once["products"]
    assert selective["norms"] == full["norms"] > once["norms"]


def test_selective_keeps_what_experts_made(counted: Counter[str]) -> None:
    once = step_counts(counted, family="qwen3_next")
    assert once["experts"] == 3
    selective = step_counts(counted, family="qwen3_next", checkpointing="selective")
    assert (selective["experts"], selective["products"]) == (once["experts"], once["products"])
    assert step_counts(counted, family="qwen3_next", checkpointing="full")["experts"] == 6


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("layers", [0, 1, 3, 99])
def test_the_first_layers_are_checkpointed(counted: Counter[str], mode: str, layers: int) -> None:
    model = make_model("qwen3_5", checkpointing=mode, checkpointed_layers=layers)
    counted.clear()
    loss = loss_of(model)
    before = counted["norms"]
    loss.backward()
    # Each layer has two; the full-attention layer, the last, two more for its heads.
    again = 2 * min(layers, 4) + (2 if layers >= 4 else 0)
    assert counted["norms"] - before == again


def test_the_layers_after_the_first_may_be_selective(counted: Counter[str]) -> None:
    """Of four, the first two are computed again whole, norms of all of them are, and no other product."""
    once = step_counts(counted, family="qwen3_5")
    first = step_counts(counted, family="qwen3_5", checkpointing="full", checkpointed_layers=2)
    mixed = step_counts(counted, family="qwen3_5", checkpointing="full", checkpointed_layers=2, others="selective")
    assert mixed["products"] == first["products"] > once["products"]
    assert mixed["delta rules"] == first["delta rules"] == once["delta rules"] + 2
    assert mixed["attention"] == once["attention"]
    assert mixed["norms"] == step_counts(counted, family="qwen3_5", checkpointing="selective")["norms"]


def test_without_gradients_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Tensor] = []
    monkeypatch.setattr(InPlace, "pack", lambda store, tensor: packed.append(tensor))
    model = make_model("qwen3_5", checkpointing="selective")
    with torch.no_grad():
        loss = loss_of(model)
    assert (packed, loss.requires_grad) == ([], False)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_nothing_outlives_backward(monkeypatch: pytest.MonkeyPatch, mode: str, offload: bool) -> None:
    """Reference counts alone must free it: a cycle would hold a layer's memory until the collector comes by."""
    monkeypatch.setattr("sft_cli.parallel.activation_offload.SMALLEST_BYTES", 0)
    model = make_model("qwen3_5", checkpointing=mode, offload=offload)
    loss_of(model).backward()
    gc.collect()
    gc.disable()
    try:
        before = alive(Tensor, Tape)  # an error that another test has looked at may hold some
        loss_of(model).backward()
        assert alive(Tensor, Tape) == before
    finally:
        gc.enable()


def alive(*kinds: type) -> list[int]:
    found = Counter(map(type, gc.get_objects()))
    return [sum(number for of, number in found.items() if issubclass(of, kind)) for kind in kinds]


class Block(nn.Module):
    """Two products with something between them that changes the first one's result."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.between = between

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.second(self.between(self.first(hidden.sin())).cos())


def run(block: Block) -> Tensor:
    from sft_cli.parallel.activation_checkpointing import checkpoint_layers
    from sft_cli.recipe.schema import ActivationCheckpointingSection

    checkpoint_layers([block], ActivationCheckpointingSection(mode="selective"))
    return block(torch.randn(3, 4, requires_grad=True))


def test_a_kept_result_that_is_changed_in_place_stops_the_run() -> None:
    with pytest.raises(RuntimeError, match="changed in place"):
        run(Block(lambda x: x.mul_(2)))


def test_a_kept_result_that_is_changed_after_forward_stops_the_run() -> None:
    made: list[Tensor] = []
    out = run(Block(lambda x: made.append(x) or x))
    with torch.no_grad():
        made[0].mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        out.sum().backward()


def test_a_recomputation_that_lays_out_its_tensors_differently_is_noticed() -> None:
    runs: list[None] = []

    def between(x: Tensor) -> Tensor:
        runs.append(None)
        return x if len(runs) == 1 else x.t().contiguous().t()

    class Sums(Block):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden + self.second(self.between(self.first(hidden.sin())))

    out = run(Sums(between))
    with pytest.raises(RuntimeError, match="another way"):
        out.sum().backward()


def test_outside_of_a_selective_layer_a_kept_call_is_just_the_call() -> None:
    def double(x: Tensor) -> Tensor:
        return 2 * x

    assert kept(double)(torch.tensor(3.0)) == 6
    assert kept(double).__wrapped__ is double  # type: ignore[attr-defined]
