from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sft_cli.errors import KernelError
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Plan
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import KernelsSection

MakePlan = Callable[..., Plan]

PACKAGES = {"fla-core": "0.6.0", "triton": "3.6.0", "tilelang": "0.1.15"}
H200 = Hardware(1, "NVIDIA H200", 140.4, compute_capability=(9, 0), packages=PACKAGES)
HYBRID = {"path": "builtin:qwen3.5-0.8b"}
LLAMA = {"path": "builtin:llama-3.1-8b"}


def chosen(plan: Plan) -> dict[str, Any]:
    return {choice.key.removeprefix("kernels."): choice for choice in plan.choices if "kernels." in choice.key}


def without(*packages: str, **changes: Any) -> Hardware:
    installed = {name: version for name, version in PACKAGES.items() if name not in packages}
    return Hardware(1, "NVIDIA H200", 140.4, compute_capability=(9, 0), packages={**installed, **changes})


@pytest.mark.parametrize("hardware", [None, H200])
def test_every_auto_gets_a_backend_and_a_reason(make_plan: MakePlan, hardware: Hardware | None) -> None:
    plan = make_plan(hardware=hardware, model=HYBRID)
    kernels = plan.recipe.kernels.model_dump()
    assert "auto" not in kernels.values()
    slots = {slot for slot, value in KernelsSection().model_dump().items() if value == "auto"}
    assert {slot: choice.value for slot, choice in chosen(plan).items()} == {slot: kernels[slot] for slot in slots}
    assert all(choice.because for choice in chosen(plan).values())
    assert not any("no such layer" in choice.because for choice in chosen(plan).values())


def test_a_cpu_runs_the_references(make_plan: MakePlan) -> None:
    kernels = make_plan(model=HYBRID).recipe.kernels
    assert (kernels.linear_attention, kernels.conv, kernels.attention) == ("torch", "torch", "sdpa")


def test_a_gpu_runs_flash_linear_attention_and_varlen(make_plan: MakePlan) -> None:
    kernels = make_plan(hardware=H200, model=HYBRID).recipe.kernels
    assert (kernels.linear_attention, kernels.conv, kernels.attention) == ("fla", "sftune", "varlen")


EXTRA = Hardware(
    1,
    "NVIDIA H200",
    140.4,
    compute_capability=(9, 0),
    packages={**PACKAGES, "flash-qla": "0.1.3", "liger-kernel": "0.8.5"},
)
FAST = ("flash_qla", "sftune", "varlen", "sftune", "fla", "liger")


def of_layers(kernels: KernelsSection) -> tuple[str, ...]:
    return (
        kernels.linear_attention, kernels.conv, kernels.attention, kernels.norm, kernels.gated_norm, kernels.mlp,
    )  # fmt: skip


@pytest.mark.parametrize("hardware", [EXTRA, Hardware(0, "NVIDIA H200", 140.4, named=True)])
def test_with_the_extra_gpu_every_layer_has_a_fast_kernel(make_plan: MakePlan, hardware: Hardware) -> None:
    assert of_layers(make_plan(hardware=hardware, model=HYBRID).recipe.kernels) == FAST


def test_a_named_gpu_gets_kernels_that_it_can_run(make_plan: MakePlan) -> None:
    ampere = Hardware(0, "NVIDIA A100-SXM4-80GB", 80.0, named=True, compute_capability=(8, 0))
    assert make_plan(hardware=ampere, model=HYBRID).recipe.kernels.linear_attention == "fla"


def test_what_keeps_a_faster_kernel_away_is_told(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan(hardware=H200, model=HYBRID)
    assert of_layers(plan.recipe.kernels) == ("fla", "sftune", "varlen", "sftune", "fla", "torch")
    assert "flash_qla won't do: no flash-qla from 0.1.3 on is installed" in chosen(plan)["linear_attention"].because
    assert "liger won't do: no liger-kernel from 0.8.5 on is installed" in chosen(plan)["mlp"].because
    config = {**read_shape("qwen3.5-0.8b"), "linear_value_head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = make_plan(hardware=EXTRA, model={"path": str(tmp_path / "config.json"), "weights": "random"})
    assert plan.recipe.kernels.linear_attention == "fla"
    assert "value heads of 64, and it has kernels for 128" in chosen(plan)["linear_attention"].because


def test_norms_and_mlp_are_exact_in_float32_and_products_are_not(make_plan: MakePlan) -> None:
    plan = make_plan(hardware=EXTRA, model={**HYBRID, "dtype": "float32"})
    assert of_layers(plan.recipe.kernels) == ("torch", "sftune", "sdpa", "sftune", "fla", "liger")


def test_a_model_without_swiglu_keeps_its_mlp(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan(hardware=EXTRA, **padded_gemma(tmp_path, 512))
    assert (plan.recipe.kernels.norm, plan.recipe.kernels.mlp) == ("sftune", "torch")
    assert chosen(plan)["mlp"].because == "no such layer in this model"


@pytest.mark.parametrize(
    ("slot", "name", "install"),
    [
        ("linear_attention", "flash_qla", "pip install 'flash-qla>=0.1.3' 'tilelang>=0.1.15'"),
        ("conv", "causal_conv1d", "pip install --no-build-isolation 'causal-conv1d>=1.7'"),
        ("attention", "flash_attention_2", "pip install --no-build-isolation 'flash-attn>=2.8,<3'"),
        ("attention", "flash_attention_4", "pip install --pre 'flash-attn-4[cu13]'"),
        ("norm", "liger", "pip install 'liger-kernel>=0.8.5'"),
        ("mlp", "liger", "pip install 'liger-kernel>=0.8.5'"),
        ("loss", "liger", "pip install 'liger-kernel>=0.8.5'"),
    ],
)
def test_a_named_kernel_that_is_missing_ends_with_its_install_line(
    make_plan: MakePlan, slot: str, name: str, install: str
) -> None:
    with pytest.raises(KernelError, match=f"`{name}` can't run this model here: no .* is installed") as caught:
        make_plan(hardware=H200, model=HYBRID, kernels={slot: name})
    assert caught.value.exit_code == 4
    assert str(caught.value.fix).startswith(install)


def test_our_own_convolution_needs_triton_and_four_taps(make_plan: MakePlan, tmp_path: Path) -> None:
    named = {"conv": "sftune"}
    assert make_plan(hardware=EXTRA, model=HYBRID).recipe.kernels.conv == "sftune"
    assert make_plan(hardware=without("triton"), model=HYBRID).recipe.kernels.conv == "fla"
    with pytest.raises(KernelError, match=r"no Triton from 3\.6 on is installed"):
        make_plan(hardware=without("triton"), model=HYBRID, kernels=named)
    config = {**read_shape("qwen3.5-0.8b"), "linear_conv_kernel_dim": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(KernelError, match="3 taps, and it has kernels for 4"):
        make_plan(hardware=EXTRA, model={"path": str(tmp_path / "config.json"), "weights": "random"}, kernels=named)


def test_tilelang_without_a_compiler_is_as_good_as_none(make_plan: MakePlan) -> None:
    without_nvcc = replace(EXTRA, has_nvcc=False)
    with pytest.raises(KernelError, match="TileLang finds no nvcc to compile with") as caught:
        make_plan(hardware=without_nvcc, model=HYBRID, kernels={"linear_attention": "flash_qla"})
    assert "tilelang[nvcc]" in str(caught.value.fix)
    with pytest.raises(KernelError, match=r"Triton 3\.6\.0 .*TileLang is installed, and finds no nvcc"):
        make_plan(hardware=without_nvcc, model=HYBRID)
    newer = replace(without_nvcc, packages={**EXTRA.packages, "triton": "3.7.1"})
    plan = make_plan(hardware=newer, model=HYBRID)
    assert plan.recipe.kernels.linear_attention == "fla"
    assert "flash_qla won't do: TileLang finds no nvcc" in chosen(plan)["linear_attention"].because


def test_more_slots_than_32_bit_offsets_reach_are_refused(make_plan: MakePlan) -> None:
    slots = {"tokens": 400_000}
    reason = "400,000 slots of 6,144 values are more than its 32-bit offsets reach"
    with pytest.raises(KernelError, match=reason) as caught:
        make_plan(hardware=EXTRA, model=HYBRID, batching=slots, train={"tokens_per_step": 400_000})
    assert caught.value.fix.startswith("Write `batching.tokens` of at most 349,525.")
    most = {"tokens": 349_525}
    make_plan(hardware=EXTRA, model=HYBRID, batching=most, train={"tokens_per_step": 349_525})


def test_padded_rows_go_through_sdpa(make_plan: MakePlan) -> None:
    assert make_plan(hardware=H200, model=HYBRID, batching={"mode": "padding"}).recipe.kernels.attention == "sdpa"


def padded_gemma(folder: Path, window: int) -> dict[str, Any]:
    """Sections of a recipe: windows in five of six layers, and rows of up to 2,048 tokens."""
    config = {"model_type": "gemma3_text", "sliding_window": window, "vocab_size": 1000}
    (folder / "config.json").write_text(json.dumps(config))
    batching, model = {"mode": "padding", "tokens": 8192}, {"path": str(folder / "config.json"), "weights": "random"}
    return {"model": model, "batching": batching, "data": {"train": "builtin:chat", "max_length": 2048}}


@pytest.mark.parametrize(("window", "expected"), [(512, "varlen"), (2048, "sdpa")])
def test_padded_rows_longer_than_a_window_go_through_varlen(
    make_plan: MakePlan, tmp_path: Path, window: int, expected: str
) -> None:
    """sdpa knows no window: it takes a T x T mask, and with that no kernel that shares keys among query heads."""
    plan = make_plan(hardware=H200, **padded_gemma(tmp_path, window))
    assert plan.recipe.kernels.attention == expected


def test_where_varlen_cannot_do_the_windows_the_plan_says_so(make_plan: MakePlan, tmp_path: Path) -> None:
    sections = padded_gemma(tmp_path, 512)
    plan = make_plan(hardware=H200, **{**sections, "model": {**sections["model"], "dtype": "float32"}})
    assert plan.recipe.kernels.attention == "sdpa"
    assert "no float32" in chosen(plan)["attention"].because


@pytest.mark.parametrize(
    ("model", "hardware", "hindrance"),
    [
        ({**LLAMA, "dtype": "float32"}, H200, "no float32"),
        (LLAMA, Hardware(1, "Tesla T4", 15.0, compute_capability=(7, 5)), "7.5"),
    ],
)
def test_what_varlen_cannot_do_goes_through_sdpa(
    make_plan: MakePlan, model: dict[str, Any], hardware: Hardware, hindrance: str
) -> None:
    plan = make_plan(hardware=hardware, model=model)
    assert plan.recipe.kernels.attention == "sdpa"
    assert hindrance in chosen(plan)["attention"].because
    with pytest.raises(KernelError, match=r"`varlen` can't run this model here"):
        make_plan(hardware=hardware, model=model, kernels={"attention": "varlen"})


def test_heads_that_varlen_has_no_kernel_for_go_through_sdpa(make_plan: MakePlan, tmp_path: Path) -> None:
    """OpenLLaMA 3B: 32 heads of 100."""
    config = {**read_shape("llama-3.1-8b"), "hidden_size": 3200, "head_dim": None, "num_key_value_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = make_plan(hardware=H200, model={"path": str(tmp_path / "config.json"), "weights": "random"})
    assert plan.recipe.kernels.attention == "sdpa"
    assert "heads of 100" in chosen(plan)["attention"].because


def test_what_the_recipe_names_stays_without_a_choice(make_plan: MakePlan) -> None:
    plan = make_plan(kernels={"loss": "torch"})
    assert plan.recipe.kernels.loss == "torch"
    assert "loss" not in chosen(plan)


def test_a_model_without_the_layer_says_so(make_plan: MakePlan) -> None:
    """And it trains without the packages for it."""
    plan = make_plan(hardware=without("fla-core"), model=LLAMA)
    missing = {slot for slot, choice in chosen(plan).items() if choice.because == "no such layer in this model"}
    assert missing == {"linear_attention", "conv", "gated_norm"}


OLD = Hardware(1, "NVIDIA H200", 140.4, compute_capability=(9, 0), packages={**PACKAGES, "fla-core": "0.5.9"})


@pytest.mark.parametrize("bare", [without("fla-core"), OLD])
def test_a_slow_stand_in_stops_the_run_unless_it_is_asked_for(make_plan: MakePlan, bare: Hardware) -> None:
    """Nor is a version whose functions take other arguments what is needed."""
    with pytest.raises(KernelError, match="many times slower") as caught:
        make_plan(hardware=bare, model=HYBRID)
    assert caught.value.exit_code == 4
    assert caught.value.fix is not None
    assert "pip install 'flash-linear-attention" in str(caught.value)
    loose = make_plan(hardware=bare, model=HYBRID, kernels={"strict": False})
    assert loose.recipe.kernels.linear_attention == "torch"
    assert "many times slower" in chosen(loose)["linear_attention"].because
    asked = make_plan(hardware=bare, model=HYBRID, kernels={"linear_attention": "torch", "conv": "torch"})
    assert asked.recipe.kernels.linear_attention == "torch"


def test_a_named_kernel_that_is_not_installed_is_refused_even_if_not_strict(make_plan: MakePlan) -> None:
    with pytest.raises(KernelError, match="`fla` can't run this model here"):
        make_plan(hardware=without("fla-core"), model=HYBRID, kernels={"strict": False, "conv": "fla"})


@pytest.mark.parametrize(("slot", "backend"), [("linear_attention", "fla"), ("conv", "fla"), ("attention", "varlen")])
def test_gpu_kernels_are_refused_on_a_cpu(make_plan: MakePlan, slot: str, backend: str) -> None:
    with pytest.raises(KernelError, match=f"`{backend}` needs a GPU"):
        make_plan(kernels={slot: backend})


def test_a_gpu_too_old_for_it_is_never_slow_unasked(make_plan: MakePlan) -> None:
    old = Hardware(1, "Tesla T4", 15.0, compute_capability=(7, 5), packages=PACKAGES)
    with pytest.raises(KernelError, match=r"capability 7\.5.*many times slower"):
        make_plan(hardware=old, model=HYBRID)
    with pytest.raises(KernelError, match="`fla` can't run this model here"):
        make_plan(hardware=old, model=HYBRID, kernels={"linear_attention": "fla", "conv": "torch"})
    asked = make_plan(hardware=old, model=HYBRID, kernels={"linear_attention": "torch", "conv": "torch"})
    assert asked.recipe.kernels.linear_attention == "torch"


def test_who_asks_for_float32_gets_float32(make_plan: MakePlan) -> None:
    """The built-in recipe does, and has to run on a GPU as well."""
    exact = {**HYBRID, "dtype": "float32"}
    plan = make_plan(hardware=H200, model=exact)
    assert (plan.recipe.kernels.linear_attention, plan.recipe.kernels.conv) == ("torch", "sftune")
    assert "TF32" in chosen(plan)["linear_attention"].because
    with pytest.raises(KernelError, match="`fla` can't run this model here: Triton rounds"):
        make_plan(hardware=H200, model=exact, kernels={"conv": "fla"})


@pytest.mark.parametrize("triton", ["3.4.0", "3.6.0", "3.7.0+git1a2b"])
def test_the_known_wrong_backward_is_refused(make_plan: MakePlan, triton: str) -> None:
    with pytest.raises(KernelError, match="backward is wrong on Hopper") as caught:
        make_plan(hardware=without("tilelang", triton=triton), model=HYBRID)
    assert "tilelang" in str(caught.value.fix)


@pytest.mark.parametrize(
    "hardware",
    [
        without("tilelang", triton="3.3.1"),
        without("tilelang", triton="3.7.1"),
        Hardware(1, "NVIDIA L40S", 45.0, compute_capability=(8, 9), packages={"fla-core": "0.6.0", "triton": "3.6.0"}),
        Hardware(0, "NVIDIA H200", 140.4, named=True),
    ],
)
def test_elsewhere_it_is_not(make_plan: MakePlan, hardware: Hardware) -> None:
    assert make_plan(hardware=hardware, model=HYBRID).recipe.kernels.linear_attention != "torch"
