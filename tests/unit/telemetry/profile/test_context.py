from __future__ import annotations

import pytest
from support.traces import BACKWARD_THREAD, MAIN, Events, gpu_step

from sft_cli.telemetry.profile.context import Context, place
from sft_cli.telemetry.profile.summary import locate

US = 1e-6


def by_name(events: Events) -> dict[str, Context]:
    trace = events.trace()
    return {
        operation.name: context for operation, context in zip(trace.operations, place(trace).operations, strict=True)
    }


def test_own_time_is_without_what_is_inside() -> None:
    events = Events()
    events.step(1, 0, 100)
    events.op("outer", 10, 60)
    events.range("a range takes no time away", 15, 55)
    events.op("inner", 20, 50)
    events.op("innermost", 30, 40)
    events.op("after", 60, 70)
    events.op("elsewhere", 20, 90, tid=7)
    trace = events.trace()
    own = dict(zip([o.name for o in trace.operations], place(trace).self_seconds, strict=True))
    expected = {"outer": 20, "inner": 20, "innermost": 10, "after": 10, "elsewhere": 70}
    assert own == pytest.approx({name: us * US for name, us in expected.items()}, abs=1e-9)


def test_a_child_that_ends_after_its_parent_is_counted_once() -> None:
    events = Events()
    events.step(1, 0, 100)
    events.op("parent", 10, 50)
    events.op("child", 40, 50.2)
    assert sum(place(events.trace()).self_seconds) == pytest.approx(40.2 * US, abs=1e-9)


def test_parts_of_the_step() -> None:
    found = by_name(gpu_step())
    assert found["aten::mm"] == Context("forward", None)
    assert found["Rule"] == Context("forward", "linear_attention")
    assert found["aten::_fused_adamw_"] == Context("optimizer", None)
    assert found["c10d::_reduce_scatter_base_"].part == "other"  # of no node, on a thread without a range


def test_backward_belongs_to_the_slot_of_its_forward_whatever_thread_it_runs_on() -> None:
    found = by_name(gpu_step())
    assert found["aten::bmm"] == Context("backward", "linear_attention")
    assert found["aten::mul"] == Context("recomputation", None)


def test_of_forward_operators_with_one_number_the_last_one_made_the_node() -> None:
    events = Events()
    events.step(1, 0, 100)
    events.range("sftune: forward", 0, 50)
    events.range("sftune: slot norm", 10, 20)
    events.op("aten::view", 12, 13, sequence=4)  # makes no node, so the number stands
    events.op("aten::add", 30, 31, sequence=4)
    events.range("sftune: backward", 50, 100)
    events.op("AddBackward0", 60, 70, MAIN, 4, 1)
    assert by_name(events)["AddBackward0"] == Context("backward", None)


def test_a_number_of_another_thread_is_no_forward() -> None:
    events = gpu_step()
    # Recomputed on backward's thread, which counts on its own.
    events.range("sftune: slot norm", 332, 345, BACKWARD_THREAD)
    events.op("aten::mul_", 335, 340, BACKWARD_THREAD, sequence=5)
    events.op("MmBackward0", 500, 505, BACKWARD_THREAD, 5, 1)
    found = by_name(events)
    assert found["aten::mul_"] == Context("recomputation", "norm")
    assert found["MmBackward0"] == Context("backward", None)


def test_an_update_inside_backward_is_the_optimizers() -> None:
    events = Events()
    events.step(1, 0, 100)
    events.range("sftune: backward", 0, 100)
    events.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 10, 50)
    events.range("Optimizer.step#AdamW.step", 20, 40)
    events.op("aten::_fused_adamw_", 25, 35)
    assert by_name(events)["aten::_fused_adamw_"] == Context("optimizer", None)


def test_a_kernel_belongs_to_what_launched_it() -> None:
    trace = gpu_step().trace()
    found = dict(zip([kernel.name for kernel in trace.kernels], locate(trace).kernels, strict=True))
    assert found["nvjet_tst_128x256"] == Context("forward", None)
    assert found["chunk_fwd_kernel"] == Context("forward", "linear_attention")
    assert found["elementwise_kernel<mul>"] == Context("recomputation", None)
    assert found["cutlass_gemm_small"] == Context("backward", "linear_attention")
    assert found["multi_tensor_apply_kernel"] == Context("optimizer", None)
