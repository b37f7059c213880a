"""What kind of work an operation or a kernel is: by the kernel slot that it ran in, else by its name."""

from __future__ import annotations

import re
from functools import lru_cache

from sft_cli.telemetry.profile.context import Context

GEMM, ATTENTION, DELTA_RULE, CONV, NORM, LOSS = "GEMM", "attention", "delta rule", "conv", "norm", "loss"
ELEMENTWISE, COPY, OPTIMIZER, COMMUNICATION, REST = "elementwise", "copy", "optimizer", "communication", "other"

KINDS = (GEMM, ATTENTION, DELTA_RULE, CONV, NORM, ELEMENTWISE, COPY, LOSS, OPTIMIZER, COMMUNICATION, REST)
"""In the order in which they are shown."""

_OF_SLOTS = {
    "linear_attention": DELTA_RULE,
    "conv": CONV,
    "attention": ATTENTION,
    "norm": NORM,
    "gated_norm": NORM,
}
_COMMUNICATION = re.compile(r"nccl|gloo:|c10d::|_c10d_functional|record_param_comms|RegisterPostBackward|fsdp", re.I)
_GEMM = re.compile(
    r"^aten::(add|sparse_)?(mm|bmm|addmm|addbmm|baddbmm|mv|linear|matmul|_scaled_mm|_grouped_mm|linalg_vecdot)$"
    r"|gemm|nvjet|xmma|gemv|cublas|cutlass.*(tensorop|kernel)|splitkreduce|wgmma",
    re.I,
)
_NAMES = (
    (ATTENTION, re.compile(r"flash_(fwd|bwd)|fmha|attention|attn|flashattn", re.I)),
    (
        DELTA_RULE,
        re.compile(r"delta_?(rule|h)|chunk_(fwd|bwd|local|scaled|kkt)|solve_tril|recompute_w_u|wy_repr|l2norm", re.I),
    ),
    (CONV, re.compile(r"conv(?!ert)", re.I)),
    (NORM, re.compile(r"(rms|layer|group)_?norm", re.I)),
    (LOSS, re.compile(r"cross_entropy|nll_loss|log_softmax|logsoftmax|liger_ce", re.I)),
    (OPTIMIZER, re.compile(r"adam", re.I)),
    (
        COPY,
        re.compile(
            r"memcpy|memset|copy|clone|contiguous|_to_copy|aten::(to|cat|stack|index|index_select|gather|embedding|"
            r"fill_|zero_|zeros|ones)\b|cat_?array|index_?(select|put|kernel|elementwise)|gather|scatter|fill",
            re.I,
        ),
    ),
    (ELEMENTWISE, re.compile(r"elementwise|reduce|silu|swiglu|softplus|vectorized|triton_poi|triton_red|cumsum", re.I)),
    (
        ELEMENTWISE,
        re.compile(
            r"^aten::_?(foreach_)?(add|sub|rsub|mul|div|pow|exp|exp2|log|sqrt|rsqrt|neg|abs|sum|mean|cumsum|square|"
            r"sigmoid|silu|relu|gelu|tanh|softplus|softmax|sin|cos|where|maximum|minimum|clamp|masked_fill|tril|triu|"
            r"eq|ne|lt|le|gt|ge|bitwise_\w+|logical_\w+|isfinite|addcmul|addcdiv|lerp|threshold|norm|linalg_\w*norm)"
            r"(_backward|_backward_data)?_?$"
        ),
    ),
)


def kind_of(name: str, context: Context) -> str:
    """One of `KINDS`.

    Communication is told by its name wherever it runs; then what belongs to the optimizer; then the kernel slot (all
    of a delta rule's small products and copies are the delta rule's); then the name. Products of the loss are GEMMs.
    """
    return _kind(name, context.part == "optimizer", context.slot)


@lru_cache(maxsize=65_536)
def _kind(name: str, is_update: bool, slot: str | None) -> str:
    if _COMMUNICATION.search(name):
        return COMMUNICATION
    if is_update:
        return OPTIMIZER
    if slot is not None and slot != "loss":
        return _OF_SLOTS[slot]
    if _GEMM.search(name):
        return GEMM
    if slot == "loss":
        return LOSS
    return next((kind for kind, pattern in _NAMES if pattern.search(name)), REST)
