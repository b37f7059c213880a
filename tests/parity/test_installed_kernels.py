"""Kernels put on a model's modules compute what the modules did, in every family; and on that model alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from support.models import CONFIGS, REFERENCES, WORDS, make_model
from support.rows import random_rows
from torch import Tensor

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.kernels import gated_norm, heads, loss, mlp, norm
from sft_cli.kernels.manifest import differences, find_kernels
from sft_cli.model.families import FAMILIES
from sft_cli.model.language_model import LanguageModel
from sft_cli.plan.model_types import GENERIC
from sft_cli.worker.assemble import kernel_layers

FAST = {"norm": "liger", "gated_norm": "fla", "mlp": "liger", "loss": "liger"}
INSTALLED = REFERENCES.model_copy(update=FAST)
LENGTHS = [65, 2, 30]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls by slot of stand-ins for packages that need a GPU: the definitions of the slots."""
    counted: Counter[str] = Counter()

    def stand_in(slot: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counted[slot] += 1
            return function(*arguments, **options)

        return call

    places: list[tuple[dict[str, Any], str, Callable[..., Any]]] = [
        (norm.NORM, "norm", norm.rms_norm),
        (norm.STREAM_NORM, "stream", norm.stream_norm),
        (gated_norm.GATED_NORM, "gated_norm", gated_norm.gated_rms_norm),
        (mlp.MLP, "mlp", mlp.silu_mul),
        (loss.LOSS, "loss", loss.whole),
    ]
    for table, slot, function in places:
        made = stand_in(slot, function)
        for name in (FAST.get(slot), "sftune"):
            if name in table:
                monkeypatch.setitem(table, name, lambda made=made: made)
    made = heads.Heads(stand_in("heads", heads.rotated), stand_in("gate", heads.gated))
    monkeypatch.setitem(heads.HEADS, "sftune", lambda: made)
    return counted


def batch() -> Batch:
    return pack_rows(random_rows(LENGTHS, words=WORDS), list(range(len(LENGTHS))), 100)


def loss_and_gradients(model: LanguageModel) -> tuple[Tensor, dict[str, Tensor]]:
    packed = batch()
    total = model(packed.model_inputs(), packed.supervised_positions, packed.supervised_targets)
    total.backward()
    return total.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@cache
def of_the_modules(family: str) -> tuple[Tensor, dict[str, Tensor]]:
    return loss_and_gradients(make_model(family))


@pytest.mark.parametrize("norms", ["liger", "sftune"])
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_they_compute_what_the_modules_did(family: str, checkpointing: str, norms: str, calls: Counter[str]) -> None:
    expected_loss, expected = of_the_modules(family)
    assert not calls
    kernels = INSTALLED.model_copy(update={"norm": norms})
    model = make_model(family, kernels=kernels, checkpointing=checkpointing)
    found_loss, found = loss_and_gradients(model)
    torch.testing.assert_close(found_loss, expected_loss, rtol=1e-6, atol=0)
    for name, gradient in expected.items():
        # Sums in another order: gradients of a sum over all tokens are as large as 100, and small ones are differences.
        assert (found[name] - gradient).norm() < 2e-5 * gradient.norm(), name
    hybrid, gemma = model.delta_net is not None, family == "gemma3"
    forwards = 1 if checkpointing == "none" else 2
    fused = norms == "sftune" and not gemma
    softmax = [layer.self_attn for layer in model.blocks if hasattr(layer, "self_attn")]
    assert calls["stream"] == (2 * forwards * len(model.blocks) if fused else 0)
    assert calls["heads"] == (2 * forwards * len(softmax) if fused else 0)
    is_gated = any(layer.q_proj.out_features > layer.o_proj.in_features for layer in softmax)
    assert calls["gate"] == (forwards * len(softmax) if fused and is_gated else 0)
    assert {slot for slot in FAST if calls[slot] or (slot == "norm" and calls["stream"])} == {
        slot for slot in FAST if (slot != "gated_norm" or hybrid) and (slot != "mlp" or not gemma)
    }
    named = {slot: word for slot, word in kernels.model_dump().items() if isinstance(word, str)}
    assert differences(find_kernels(kernel_layers(model), model.head.loss), named, inner={}) == []


def test_two_models_with_different_kernels_live_in_one_process(calls: Counter[str]) -> None:
    """Nothing is put on a class, or anywhere else that a second model would find."""
    fast, slow = make_model("qwen3_5", kernels=INSTALLED), make_model("qwen3_5")
    loss_and_gradients(slow)
    assert not calls
    loss_and_gradients(fast)
    assert set(calls) == set(FAST)
    before = calls.total()
    again = make_model("qwen3_5")
    loss_and_gradients(again)
    assert calls.total() == before
    other = make_model("qwen3_5", kernels=REFERENCES.model_copy(update={"attention": "flex"}))
    assert (other.config._attn_implementation, slow.config._attn_implementation) == ("sftune_flex", "sftune_sdpa")


def test_a_slot_that_the_model_lacks_needs_no_package() -> None:
    """Gemma's MLP is no SwiGLU, and Llama has nothing gated: a recipe that names their kernels runs all the same."""
    for family in ("gemma3", "llama"):
        make_model(family, kernels=REFERENCES.model_copy(update={"gated_norm": "fla"}))
    make_model("gemma3", kernels=REFERENCES.model_copy(update={"mlp": "liger"}))


def test_only_a_model_nobody_knows_keeps_its_norms() -> None:
    assert {name for name, family in FAMILIES.items() if family.norm_offset is None} == {GENERIC}
