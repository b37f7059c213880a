"""What `check-kernels` makes of a package, with stand-ins for those that need a GPU: their adapters are checked too."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support import kernel_packages
from support.kernel_packages import causal_conv1d, write_packages

from sft_cli.kernels.check.cases import CHECKED, Draw
from sft_cli.kernels.check.child import Failed, in_children
from sft_cli.kernels.check.measure import off_by
from sft_cli.kernels.check.probe import probe
from sft_cli.kernels.check.request import Request, Row
from sft_cli.kernels.check.slots import SLOTS
from sft_cli.plan.backends import find_backend
from sft_cli.plan.kernel_shapes import DeltaNetShapes, KernelShapes

SHAPES = KernelShapes(
    dtype="float32",
    tokens=64,
    hidden=32,
    intermediate=48,
    words=64,
    heads=4,
    key_value_heads=2,
    head_dim=16,
    windows=(None, 4096),
    delta_net=DeltaNetShapes(key_heads=2, value_heads=4, key_head_dim=16, value_head_dim=8, conv_width=4),
)
Check = Callable[..., Row]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Writes stand-ins and probes one backend with them, in this process."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(slot: str, name: str, packages: dict[str, str], dtype: str = "float32") -> Row:
        write_packages(tmp_path, packages)
        request = Request(
            device="cpu", slots=(slot,), shapes=SHAPES.model_copy(update={"dtype": dtype}), limit_seconds=60
        )
        return probe(slot, find_backend(slot, name), request)

    yield run
    stand_ins = ("causal_conv1d", "flash_qla", "flash_attn", "liger_kernel", "fla")
    for module in set(sys.modules) - before:
        if module.partition(".")[0] in stand_ins:
            del sys.modules[module]


@pytest.mark.parametrize(
    ("habit", "status", "detail"),
    [
        ("broken", "broken", "OSError: undefined symbol: x"),
        ("refuses", "unsupported", "ValueError: channels: 384, and I want 7"),
        ("wrong", "wrong", "output: off by 0.0"),
        ("leaks", "wrong", "output"),
        ("forward_only", "forward_only", "the output has no gradient function"),
        ("backward_raises", "forward_only", "NotImplementedError"),
        ("wrong_gradient", "wrong", "gradient of x: off by 0.01"),
        ("ok", "ok", None),
    ],
)
def test_habits_of_a_package(check: Check, habit: str, status: str, detail: str | None) -> None:
    row = check("conv", "causal_conv1d", causal_conv1d(habit))
    assert row.status == status
    assert (detail or "") in (row.detail or "")
    assert (row.forward_ms is not None) == (status == "ok")


def test_a_package_that_is_not_there_and_a_folder_of_its_name(check: Check) -> None:
    assert check("conv", "causal_conv1d", {}).status == "missing"
    assert check("conv", "causal_conv1d", {"causal_conv1d/notes.txt": ""}).status == "missing"


@pytest.mark.parametrize(
    ("slot", "backend", "package"),
    [
        ("linear_attention", "flash_qla", kernel_packages.FLASH_QLA),
        ("attention", "flash_attention_2", kernel_packages.FLASH_ATTN),
        ("attention", "flash_attention_4", kernel_packages.FLASH_ATTN_4),
        ("norm", "liger", kernel_packages.LIGER),
        ("mlp", "liger", kernel_packages.LIGER),
        ("loss", "liger", kernel_packages.LIGER),
        ("gated_norm", "fla", kernel_packages.FLA),
    ],
)
def test_adapters_call_their_package_as_it_wants(
    check: Check, slot: str, backend: str, package: dict[str, str]
) -> None:
    row = check(slot, backend, package)
    assert row.status == "ok", row.detail


@pytest.mark.parametrize("slot", list(SLOTS))
def test_references_are_within_what_bfloat16_allows(check: Check, slot: str) -> None:
    row = check(slot, SLOTS[slot].reference, {}, dtype="bfloat16")
    assert row.status == "ok", row.detail
    assert 0 < (row.forward_error or 0) < 0.01


def test_packs_lie_in_memory_as_slices_of_something_wider() -> None:
    packed, rows, _ = SLOTS["conv"].cases(SHAPES, Draw(SHAPES, torch.device("cpu")), CHECKED)
    assert not packed.inputs["x"].is_contiguous()
    assert rows.inputs["x"].is_contiguous()
    assert packed.inputs["x"].is_leaf


def test_a_leak_into_a_short_segment_does_not_drown_in_a_long_pack() -> None:
    expected = torch.ones(1, 10_003, 4)
    found = expected.clone()
    found[:, 5_000:5_003] += 0.5
    off = off_by(found, expected, [5_000, 3, 5_000], 1)
    assert off.whole < 0.01
    assert (off.segment, round(off.worst_segment, 6)) == (1, 0.5)


def test_a_gradient_that_ought_to_be_zero_is_measured_by_its_surroundings() -> None:
    expected = torch.cat([torch.zeros(1, 2, 4), torch.ones(1, 98, 4)], dim=1)
    assert off_by(expected + 1e-6, expected, [2, 98], 1).worst_segment < 1e-5


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda: ctypes.string_at(0), "killed by SIGSEGV"),
        (lambda: time.sleep(60), "no answer in 0.5 s"),
        (lambda: os._exit(3), "ended with exit code 3"),
        (lambda: sys.exit("enough"), "ended with exit code 1: SystemExit: enough"),
    ],
)
def test_a_child_that_gives_no_answer(work: Callable[[], str], why: str) -> None:
    """And those before and after it do."""
    works = [lambda: "first", work, lambda: str(os.getpid()), lambda: str(os.getpid())]
    first, failed, *rest = in_children(works, 0.5)
    assert (first, failed) == ("first", Failed(why))
    assert rest[0] == rest[1] != str(os.getpid())


def test_one_child_is_enough_for_all_that_answer_and_a_spoiled_one_is_replaced() -> None:
    works = [lambda: str(os.getpid())] * 3
    assert len(set(in_children(works, 30))) == 1
    assert len(set(in_children(works, 30, is_fit=lambda answer: False))) == 3


def test_a_crash_after_the_last_answer_is_none() -> None:
    def work() -> str:
        threading.Timer(0.1, os.abort).start()
        return "done"

    assert list(in_children([work], 30)) == ["done"]


def test_a_childs_answer_may_be_long_and_its_chatter_is_put_away(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> str:
        os.write(1, b"compiling")
        return "x\n" * 150_000

    assert list(in_children([work], 30)) == ["x\n" * 150_000]
    assert capfd.readouterr().out == ""
