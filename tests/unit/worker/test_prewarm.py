"""What a plan asks to be compiled ahead, and that it is beside other work."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import torch

from sft_cli.kernels.prewarm.request import DECAY, GATE, HEADS, SUMS, Request
from sft_cli.model.families import FAMILIES
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.kernel_shapes import PlainLayers
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe
from sft_cli.worker import prewarm
from sft_cli.worker.prewarm import request_of

H200 = Hardware(
    1,
    "NVIDIA H200",
    140.4,
    compute_capability=(9, 0),
    packages={"triton": "3.6.0", "fla-core": "0.6.0", "tilelang": "0.1.15"},
)


def asked(path: str = "builtin:qwen3.5-0.8b", ranks: int = 1, **sections: Any) -> Request:
    model = {"path": path, **sections.pop("model", {})}
    recipe = Recipe.model_validate({"data": {"train": "builtin:chat"}, "model": model, **sections})
    return request_of(resolve(recipe, H200, find_model(recipe.model), None, ranks), gpu="NVIDIA H200, 9.0")


def test_all_that_norm_and_conv_sftune_call_of_a_hybrid() -> None:
    request = asked(batching={"tokens": 4096})
    assert {slot: request.backends[slot] for slot in ("norm", "conv")} == {"norm": "sftune", "conv": "sftune"}
    assert {SUMS, HEADS, GATE, "conv", DECAY} <= set(request.parts)
    assert "norm" not in request.parts
    assert not request.is_padded
    assert asked(batching={"mode": "padding", "tokens": 4096}).is_padded


def test_a_plain_model_without_gates() -> None:
    request = asked("builtin:llama-3.1-8b")
    assert [part for part in request.parts if part in (SUMS, HEADS, GATE, DECAY)] == [SUMS, HEADS]
    plain = request.plain
    assert plain is not None
    assert (plain.offset, plain.head_norms, plain.is_gated, plain.rotated) == (0.0, False, False, 128)


@pytest.mark.parametrize(
    ("backend", "master", "weights"),
    [("none", "float32", "float32"), ("none", "bfloat16", "bfloat16"), ("fsdp2", "float32", "bfloat16")],
)
def test_layers_see_their_parameters_as_fsdp2_casts_them_or_as_masters(backend: str, master: str, weights: str) -> None:
    request = asked(model={"dtype": "bfloat16", "master_dtype": master}, sharding={"backend": backend})
    expected = PlainLayers(offset=1.0, weights=weights, head_norms=True, is_gated=True, rotated=64)  # type: ignore[arg-type]
    assert request.plain == expected


def test_who_knows_the_layers_knows_their_norms() -> None:
    assert all(family.norm_offset is not None for family in FAMILIES.values() if family.is_plain)


class Compiling:
    """Stands for `prewarm_kernels`: says a line, and goes on until it is let go or stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, error: Exception | None = None) -> None:
        self.let_go, self.began = Event(), Event()
        self.was_stopped = self.have_met = False
        self._error = error
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setattr(prewarm, "prewarm_kernels", self)
        monkeypatch.setattr(prewarm, "_processes", lambda plan, device: 12)
        monkeypatch.setattr(prewarm.dist, "all_reduce", self.meet)

    def __call__(self, plan: Any, device: Any, processes: int, say: Any, is_stopped: Callable[[], bool]) -> None:
        say(f"{processes} processes")
        self.began.set()
        while not self.let_go.wait(0.001):
            if is_stopped():
                self.was_stopped = True
                return
        if self._error is not None:
            raise self._error
        say("compiled")

    def meet(self, tensor: torch.Tensor) -> None:
        self.have_met = True


PLAN: Any = None
GPU = torch.device("cuda", 0)


def test_kernels_are_compiled_beside_what_is_done_inside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiling, said = Compiling(monkeypatch), []
    with prewarm.compiling_ahead(PLAN, GPU, lambda: False) as wait:
        assert compiling.began.wait(10)
        assert not said, "the thread has nobody to tell"
        compiling.let_go.set()
        wait(said.append)
        wait(said.append)
        assert compiling.have_met
    assert said == ["12 processes", "compiled"]
    assert not compiling.was_stopped
    assert not capsys.readouterr().out


def test_an_error_beside_it_ends_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    compiling = Compiling(monkeypatch)

    def fail() -> None:
        with prewarm.compiling_ahead(PLAN, GPU, lambda: False):
            assert compiling.began.wait(10)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert compiling.was_stopped
    assert not compiling.have_met
    # An error of the GPU's memory may be theirs.
    assert capsys.readouterr().out == "12 processes\n"


def test_its_own_error_comes_out_of_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = Compiling(monkeypatch, error=ZeroDivisionError())
    compiling.let_go.set()
    with prewarm.compiling_ahead(PLAN, GPU, lambda: False) as wait, pytest.raises(ZeroDivisionError):
        wait(print)


def test_a_stopped_run_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, is_stopped = Compiling(monkeypatch), Event()
    with prewarm.compiling_ahead(PLAN, GPU, is_stopped.is_set) as wait:
        is_stopped.set()
        wait(print)
    assert compiling.was_stopped


def test_other_processes_of_a_machine_only_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = Compiling(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with prewarm.compiling_ahead(PLAN, GPU, lambda: False) as wait:
        wait(print)
    assert compiling.have_met
    assert not compiling.began.is_set()
