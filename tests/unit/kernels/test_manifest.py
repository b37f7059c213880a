"""kernels.json is read off the live model, and a model that runs other kernels than planned is found out."""

from __future__ import annotations

import logging
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import yaml
from support.models import REFERENCES, make_model
from transformers import AttentionInterface

from sft_cli.kernels import reference
from sft_cli.kernels.fla import InnerBackends
from sft_cli.kernels.manifest import cost, describe_function, describe_kernels, differences, find_kernels, refusal
from sft_cli.model.language_model import LanguageModel
from sft_cli.worker.assemble import kernel_layers

GOT = {slot: word for slot, word in REFERENCES.model_dump().items() if isinstance(word, str) and slot != "float8"}


def manifest(family: str) -> dict[str, dict[str, Any]]:
    model = make_model(family)
    found = find_kernels(kernel_layers(model), model.head.loss)
    return describe_kernels(found, asked=dict.fromkeys(GOT, "auto"), got=GOT, inner={})


def told(model: LanguageModel, **got: str) -> list[str]:
    return differences(find_kernels(kernel_layers(model), model.head.loss), {**GOT, **got}, inner={})


def test_names_what_runs() -> None:
    slots = manifest("qwen3_5")
    assert set(slots) == set(GOT)
    assert slots["linear_attention"]["callable"] == "sft_cli.kernels.reference.gated_delta_rule"
    assert slots["linear_attention"]["package"] == "sftune"
    assert slots["norm"]["package"] == "transformers"
    assert slots["norm"]["version"] == version("transformers")
    assert slots["norm"]["callable"].endswith("Qwen3_5RMSNorm.forward")
    assert all(Path(str(slot["file"])).is_file() for slot in slots.values())


def test_a_module_is_named_by_what_it_is_installed_as() -> None:
    """Also where that has another name, as `fla` of fla-core has; a model's own code is not installed."""

    def forward() -> None: ...

    forward.__module__ = "modeling_own.attention"
    found = [describe_function(function) for function in (torch.compile, yaml.safe_load, forward)]
    assert [(one["package"], one["version"]) for one in found] == [
        ("torch", version("torch")),
        ("PyYAML", version("PyYAML")),
        ("modeling_own", None),
    ]


@pytest.mark.parametrize("slot", ["linear_attention", "conv", "gated_norm"])
def test_a_slot_that_the_model_lacks_got_nothing(slot: str) -> None:
    nothing = dict.fromkeys(("got", "callable", "package", "version", "file"))
    assert manifest("llama")[slot] == {"asked": "auto", **nothing}


@pytest.mark.parametrize("family", ["qwen3_5", "llama", "gemma3", "qwen3_next"])
def test_a_model_as_planned_has_no_difference(family: str) -> None:
    assert told(make_model(family)) == []


def test_what_the_plan_did_not_choose_is_told() -> None:
    model = make_model("qwen3_5")
    assert told(model, attention="varlen") == [
        "attention: the plan says varlen, and the model calls sft_cli.kernels.attention.sdpa"
    ]
    assert "the plan says torch, and the model calls sft_cli.kernels.loss.chunked" in told(model, loss="torch")[0]
    error = refusal(told(model, attention="varlen"))
    assert error.exit_code == 4
    assert "attention: the plan says varlen" in error.what
    assert "up to half as fast" in str(error.fix)


def test_one_layer_that_differs_is_enough() -> None:
    model = make_model("qwen3_5")
    block = model.delta_net_blocks[1]
    slow = partial(reference.gated_delta_rule_recurrent)
    slow.__module__, slow.__qualname__ = "elsewhere", "slow"  # type: ignore[attr-defined]
    block.forward = partial(block.forward.func, *block.forward.args, **{**block.forward.keywords, "delta_rule": slow})
    assert told(model) == ["linear_attention: the plan says torch, and the model calls elsewhere.slow"]


def test_a_replaced_attention_function_is_told() -> None:
    """As packages do that patch transformers' registry."""
    model = make_model("llama")

    def patched(*arguments: Any) -> None: ...

    AttentionInterface.register("sftune_patched", patched)
    model.config._attn_implementation = "sftune_patched"
    assert len(told(model)) == 1
    assert told(model)[0].startswith("attention: the plan says sdpa, and the model calls")


def test_costs_are_told_once() -> None:
    assert cost(["linear_attention: x", "conv: x"]) == "many times slower"
    assert cost(["norm: x", "conv: x"]) == "a few percent of speed and many times slower"


@pytest.mark.parametrize("slot", ["norm", "mlp"])
def test_what_somebody_put_on_an_instance_is_told(slot: str) -> None:
    """As Liger's `apply_...(model=...)` does."""
    model = make_model("qwen3_5")
    module = getattr(kernel_layers(model), {"norm": "norms", "mlp": "swiglu"}[slot])[1]

    def forward(module: Any, x: Any) -> Any: ...

    forward.__module__ = "liger_kernel.transformers"
    module.forward = MethodType(forward, module)
    assert len(told(model)) == 1
    assert told(model)[0].startswith(f"{slot}: the plan says torch, and the model calls liger_kernel.transformers.")


def test_a_replaced_block_is_told() -> None:
    model = make_model("qwen3_5")

    def forward(hidden_states: Any, **options: Any) -> Any: ...

    model.delta_net_blocks[0].forward = forward
    assert [line.partition(":")[0] for line in told(model)] == ["linear_attention", "conv"]


def test_inner_steps_are_of_the_delta_rule_alone() -> None:
    model = make_model("qwen3_5")
    found = find_kernels(kernel_layers(model), model.head.loss)
    got, inner = {**GOT, "linear_attention": "fla"}, {"common.chunk_bwd_dqkwg": "tilelang"}
    described = describe_kernels(found, asked=got, got=got, inner=inner)
    assert {slot for slot in described if "inner" in described[slot]} == {"linear_attention"}
    assert described["linear_attention"]["inner"] == inner


def test_inner_backends_are_those_that_flash_linear_attention_names() -> None:
    listener = InnerBackends.listening()
    logger = logging.getLogger("fla.backends")
    logger.info("[FLA Backend] common.chunk_bwd_dqkwg -> tilelang")
    logger.info("[FLA Backend] gated_delta_rule.chunk_gated_delta_rule -> flash_qla rejected: K must be 128")
    logger.info("[FLA Backend] FLA_DISABLE_BACKEND_DISPATCH=1 - all dispatch bypassed")
    logger.removeHandler(listener)
    assert listener.taken == {"common.chunk_bwd_dqkwg": "tilelang"}
