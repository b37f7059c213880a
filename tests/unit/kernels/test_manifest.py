"""kernels.json is read off the live model, and a model that runs other kernels than planned is found out."""

from __future__ import annotations

import functools
import logging
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from support.models import REFERENCES, make_model
from transformers import AttentionInterface

from sft_cli.errors import KernelError
from sft_cli.kernels import heads, norm, reference
from sft_cli.kernels.fla import InnerBackends
from sft_cli.kernels.manifest import cost, describe_function, describe_kernels, differences, find_kernels, refusal
from sft_cli.kernels.regions import Regions
from sft_cli.model.language_model import LanguageModel
from sft_cli.worker.assemble import kernel_layers, pass_kernels_check

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


OWN = REFERENCES.model_copy(update={"norm": "sftune"})


@pytest.fixture
def own_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions in place of sftune's Triton kernels."""
    monkeypatch.setitem(norm.NORM, "sftune", lambda: norm.rms_norm)
    monkeypatch.setitem(norm.STREAM_NORM, "sftune", lambda: norm.stream_norm)
    monkeypatch.setitem(heads.HEADS, "sftune", lambda: heads.Heads(heads.rotated, heads.gated))


def another(*arguments: Any, **options: Any) -> Any: ...


def around(forward: Any) -> Any:
    """As a package does that wants to be there when a layer runs."""

    @functools.wraps(forward)
    def run(*arguments: Any, **options: Any) -> Any:
        return forward(*arguments, **options)

    return run


@pytest.mark.usefixtures("own_norms")
@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("qwen3_5", ["norm.stream_norm", "heads.rotated", "heads.gated"]),
        ("llama", ["norm.stream_norm", "heads.rotated"]),
        ("gemma3", ["norm.rms_norm"]),
    ],
)
def test_a_slot_names_all_that_its_layers_call_and_nothing_else(family: str, names: list[str]) -> None:
    model = make_model(family, kernels=OWN)
    got = {**GOT, "norm": "sftune"}
    found = find_kernels(kernel_layers(model), model.head.loss)
    slot = describe_kernels(found, asked=got, got=got, inner={})["norm"]
    told = [slot, *slot.get("beside", [])]
    assert [one["callable"] for one in told] == [f"sft_cli.kernels.{name}" for name in names]
    assert all(one["package"] == "sftune" and Path(str(one["file"])).is_file() for one in told)


def test_decay_and_beta_are_named_beside_the_convolution() -> None:
    assert [one["callable"] for one in manifest("qwen3_5")["conv"]["beside"]] == [
        "sft_cli.kernels.linear_attention.gates"
    ]


@pytest.mark.usefixtures("own_norms")
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
@pytest.mark.parametrize("family", ["qwen3_5", "llama", "gemma3", "qwen3_next"])
def test_forwards_of_ours_are_known_under_checkpointing(family: str, checkpointing: str) -> None:
    for offload in (False, True) if checkpointing != "none" else (False,):
        options: dict[str, Any] = {"checkpointing": checkpointing, "offload": offload}
        assert told(make_model(family, kernels=OWN, **options), norm="sftune") == []
        assert told(make_model(family, **options)) == []


@pytest.mark.usefixtures("own_norms")
@pytest.mark.parametrize("family", ["qwen3_5", "llama", "gemma3"])
def test_what_is_compiled_goes_by_what_it_was_made_of(family: str) -> None:
    for kernels in (REFERENCES, OWN):
        model = make_model(family, kernels=kernels, regions=Regions(compiles=True, backend="eager"))
        assert told(model, norm=kernels.norm) == []


REPLACEMENTS: dict[str, Any] = {
    "a function": lambda module: another,
    "a method": lambda module: MethodType(another, module),
    "a partial": lambda module: partial(another, module),
    "the class's own": lambda module: MethodType(type(module).forward, module),
    "around ours": lambda module: around(module.forward),
}


@pytest.mark.usefixtures("own_norms")
@pytest.mark.parametrize("checkpointing", ["none", "selective"])
@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("part", ["layer", "attention"])
def test_a_replaced_forward_is_told_and_refused(part: str, replacement: str, checkpointing: str) -> None:
    """One layer's is enough, and whatever it was replaced with."""
    model = make_model("qwen3_5", kernels=OWN, checkpointing=checkpointing)
    layer = model.blocks[3]
    module = layer if part == "layer" else layer.self_attn
    assert told(model, norm="sftune") == []
    module.forward = REPLACEMENTS[replacement](module)
    lines = told(model, norm="sftune")
    assert lines[0 if part == "layer" else -1].startswith("norm: the plan says sftune, and the model calls ")
    name = {"the class's own": f"{type(module).__qualname__}.forward", "around ours": "around.<locals>.run"}
    assert lines[-1].endswith(name.get(replacement, "test_manifest.another"))
    # Transformers' own attention calls the kernel of its slot; nobody knows what another one does.
    slots = ["attention", "norm"] if part == "attention" and replacement != "the class's own" else ["norm"]
    assert [line.partition(":")[0] for line in lines] == slots
    assert refusal(lines).exit_code == 4


@pytest.mark.usefixtures("own_norms")
def test_strict_refuses_it_and_else_it_is_said() -> None:
    model = make_model("llama", kernels=OWN)
    model.blocks[1].forward = another

    def check(strict: bool) -> str | None:
        kernels = OWN.model_copy(update={"strict": strict})
        return pass_kernels_check(SimpleNamespace(recipe=SimpleNamespace(kernels=kernels)), model, {})[1]  # type: ignore[arg-type]

    with pytest.raises(KernelError, match=r"norm: the plan says sftune, and the model calls .*another"):
        check(strict=True)
    assert str(check(strict=False)).startswith("WARNING: not the kernels of the plan")


@pytest.mark.usefixtures("own_norms")
@pytest.mark.parametrize("part", ["layer", "attention", "delta net", "norm"])
def test_ours_that_did_not_take_is_told(part: str) -> None:
    """As if transformers no longer called what is on the instance."""
    model = make_model("qwen3_5", kernels=OWN)
    layer = model.blocks[0 if part == "delta net" else 3]
    module = {
        "layer": lambda: layer,
        "attention": lambda: layer.self_attn,
        "delta net": lambda: layer.linear_attn,
        "norm": lambda: layer.input_layernorm,
    }[part]()
    del module.forward
    lines = told(model, norm="sftune")
    assert {line.partition(":")[0] for line in lines} == (
        {"linear_attention", "conv"} if part == "delta net" else {"norm"}
    )
    assert all(f"{type(module).__qualname__}.forward" in line for line in lines)


@pytest.mark.parametrize("is_around", [False, True])
@pytest.mark.parametrize("part", ["layer", "attention", "delta net", "norm", "mlp", "gated norm"])
def test_a_class_that_somebody_patched_is_told(part: str, is_around: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As packages do that replace `forward` for all models of a process."""
    model = make_model("qwen3_5")
    layer = model.blocks[3]
    module, slot = {
        "layer": (layer, "norm"),
        "attention": (layer.self_attn, "attention"),
        "delta net": (model.blocks[0].linear_attn, None),
        "norm": (layer.input_layernorm, "norm"),
        "mlp": (layer.mlp, "mlp"),
        "gated norm": (model.blocks[0].linear_attn.norm, "gated_norm"),
    }[part]
    monkeypatch.setattr(type(module), "forward", around(type(module).forward) if is_around else another)
    lines = told(model)
    # The delta net's instances have a forward of ours, which nobody replaced.
    assert [line.partition(":")[0] for line in lines] == ([] if slot is None else [slot])
    name = "around.<locals>.run" if is_around else "another"
    assert all(line.endswith(f"test_manifest.{name}") for line in lines)


@pytest.mark.usefixtures("own_norms")
@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_what_runs_instead_is_described(replacement: str) -> None:
    """`strict: false` trains with it, and kernels.json names it."""
    model = make_model("llama", kernels=OWN)
    layer = model.blocks[1]
    layer.forward = REPLACEMENTS[replacement](layer)
    got = {**GOT, "norm": "sftune"}
    found = find_kernels(kernel_layers(model), model.head.loss)
    slot = describe_kernels(found, asked=got, got=got, inner={})["norm"]
    names = [slot["callable"], *(one["callable"] for one in slot["beside"])]
    assert any(name.endswith(("another", "around.<locals>.run", "LlamaDecoderLayer.forward")) for name in names)


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
