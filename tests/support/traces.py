"""Traces written by hand, in Chrome's format as torch exports it. Times are microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sft_cli.telemetry.profile.events import Trace, trace_of

MAIN, BACKWARD_THREAD = 100, 101
ORIGIN = 5_144_678_014_640.565
"""Of real traces: what a number of microseconds must not lose its digits beside."""


class Events(list[dict[str, Any]]):
    def _add(self, cat: str, name: str, start: float, end: float, tid: int, **args: Any) -> None:
        self.append(
            {
                "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid,
                "ts": ORIGIN + start, "dur": end - start, "args": args,
            }
        )  # fmt: skip

    def step(self, number: int, start: float, end: float) -> None:
        self._add("user_annotation", f"ProfilerStep#{number}", start, end, MAIN)

    def range(self, name: str, start: float, end: float, tid: int = MAIN) -> None:
        self._add("user_annotation", name, start, end, tid)

    def op(
        self, name: str, start: float, end: float, tid: int = MAIN, sequence: int | None = None, forward_thread: int = 0
    ) -> None:
        numbers = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": forward_thread}
        self._add("cpu_op", name, start, end, tid, **{"External id": 1, **numbers})

    def launch(
        self, correlation: int, start: float, end: float, tid: int = MAIN, name: str = "cudaLaunchKernel"
    ) -> None:
        self._add("cuda_runtime", name, start, end, tid, correlation=correlation)

    def kernel(
        self, name: str, start: float, end: float, correlation: int, stream: int = 7, cat: str = "kernel"
    ) -> None:
        self._add(cat, name, start, end, stream, device=0, stream=stream, correlation=correlation)

    def memory(self, time: float, allocated_bytes: int, device_type: int) -> None:
        args = {"Total Allocated": allocated_bytes, "Device Type": device_type, "Bytes": 1}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": MAIN, "s": "t"}
        self.append({**event, "ts": ORIGIN + time, "args": args})

    def trace(self) -> Trace:
        return trace_of(self)

    def write(self, path: Path) -> Path:
        document = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": list(self), "traceName": "x"}
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")
        return path


def gpu_step() -> Events:
    """One step of 1,000 us on a GPU. By hand:

    host  0-100 data wait, 100-300 forward, 300-600 backward, 600-700 clipping and update, 700-1000 waits for the GPU
    GPU   stream 7: product 200-400, delta rule in two kernels 400-450 and 450-500, update 800-900
          stream 9: all-gather 150-250 (50 alone), reduce-scatter 500-600 (all of it alone)
    """
    events = Events()
    events.step(3, 0, 1000)
    events.range("sftune: data wait", 0, 100)
    events.range("sftune: forward", 100, 300)
    events.range("sftune: backward", 300, 600)
    events.range("sftune: optimizer", 600, 650)
    events.range("Optimizer.step#AdamW.step", 650, 700)
    events.op("c10d::_allgather_base_", 100, 140)
    events.launch(1, 110, 120)
    events.op("aten::linear", 140, 200, sequence=5)
    events.op("aten::mm", 150, 190, sequence=5)
    events.launch(2, 170, 180)
    events.range("sftune: slot linear_attention", 200, 290)
    events.op("Rule", 210, 280, sequence=6)
    events.launch(3, 220, 230)
    # Backward runs on a thread of its own.
    events.op("autograd::engine::evaluate_function: RuleBackward", 310, 500, BACKWARD_THREAD, 6, 1)
    events.range("sftune: recomputation", 320, 400, BACKWARD_THREAD)
    events.op("aten::mul", 330, 390, BACKWARD_THREAD, 1)
    events.launch(4, 340, 350, BACKWARD_THREAD)
    events.op("aten::bmm", 410, 490, BACKWARD_THREAD)
    events.launch(5, 420, 430, BACKWARD_THREAD)
    events.op("c10d::_reduce_scatter_base_", 510, 590, BACKWARD_THREAD)
    events.launch(6, 520, 530, BACKWARD_THREAD)
    events.op("aten::_fused_adamw_", 660, 700)
    events.launch(7, 670, 680)
    events.launch(8, 700, 1000, name="cudaStreamSynchronize")
    events.kernel("ncclDevKernel_AllGather_RING_LL", 150, 250, 1, stream=9)
    events.kernel("nvjet_tst_128x256", 200, 400, 2)
    events.kernel("chunk_fwd_kernel", 400, 450, 3)
    events.kernel("elementwise_kernel<mul>", 450, 470, 4)
    events.kernel("cutlass_gemm_small", 470, 500, 5)
    events.kernel("ncclDevKernel_ReduceScatter_RING_LL", 500, 600, 6, stream=9)
    events.kernel("multi_tensor_apply_kernel", 800, 900, 7)
    return events
