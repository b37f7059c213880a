"""Stand-ins for kernel packages that need a GPU: the signatures of the real ones; habits good and bad."""

from __future__ import annotations

from pathlib import Path

CONV = """
import torch
from sft_cli.kernels import reference
from sft_cli.kernels.segments import Segments

def segments(seq_idx):
    if seq_idx is None:
        return None
    assert seq_idx.dtype == torch.int32 and seq_idx.shape[0] == 1
    return Segments.of(torch.unique_consecutive(seq_idx[0], return_counts=True)[1].tolist(), seq_idx.device)

def right(x, weight, bias=None, seq_idx=None, activation=None):
    assert activation == "silu" and (x.stride(1) == 1 or x.shape[2] == 1)
    return reference.causal_conv(x.transpose(1, 2), weight, bias, segments(seq_idx)).transpose(1, 2)
"""
CAUSAL_CONV1D = {
    "ok": f"{CONV}\ncausal_conv1d_fn = right\n",
    "broken": 'raise OSError("undefined symbol: x")\n',
    "hangs": "import time\nwhile True: time.sleep(1)\n",
    "crashes": "import ctypes\nctypes.string_at(0)\n",
    "wrong": f"{CONV}\ndef causal_conv1d_fn(*args, **options): return right(*args, **options) + 1e-2\n",
    "leaks": f"{CONV}\ndef causal_conv1d_fn(x, weight, bias=None, seq_idx=None, activation=None):\n"
    "    return right(x, weight, bias, None, activation)\n",
    "forward_only": f"{CONV}\ndef causal_conv1d_fn(*args, **options): return right(*args, **options).detach()\n",
    "backward_raises": f"""{CONV}
class Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, seq_idx, activation):
        return right(x, weight, bias, seq_idx, activation)

def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, activation=None):
    return Conv.apply(x, weight, bias, seq_idx, activation)
""",
    "refuses": "def causal_conv1d_fn(*args, **options): raise ValueError('channels: 384, and I want 7')\n",
    "wrong_gradient": f"""{CONV}
def causal_conv1d_fn(*args, **options):
    out = right(*args, **options)
    return out.detach() + 1.01 * (out - out.detach())
""",
}
"""What it does -> the package's only file."""

FLASH_QLA = {
    "flash_qla/__init__.py": """
from sft_cli.kernels import reference
from sft_cli.kernels.segments import Segments

def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False,
                           use_qk_l2norm_in_kernel=False, cu_seqlens=None, head_first=False, state_v_first=False,
                           auto_cp=True):
    assert q.shape[0] == 1 and use_qk_l2norm_in_kernel and not auto_cp and cu_seqlens.prepared
    return reference.gated_delta_rule(q, k, v, g, beta, Segments.of(cu_seqlens.diff().tolist())), None
""",
    "flash_qla/utils/__init__.py": "",
    "flash_qla/utils/index.py": """
import torch

def prepare_varlen_metadata(cu_seqlens, cu_seqlens_cpu):
    assert torch.equal(cu_seqlens.cpu(), cu_seqlens_cpu) and cu_seqlens.dtype == torch.int32
    cu_seqlens.prepared = True
    return cu_seqlens
""",
}
FLASH_ATTN = {
    "flash_attn/__init__.py": """
import torch
from sft_cli.kernels.attention import sdpa

def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1)):
    assert causal and window_size[1] == 0 and max_seqlen_q == int(cu_seqlens_q.diff().max())
    rows = (x.transpose(0, 1)[None] for x in (q, k, v))
    window = None if window_size[0] == -1 else window_size[0] + 1
    return sdpa(None, *rows, None, scaling=softmax_scale, cu_seq_lens_q=cu_seqlens_q, sliding_window=window)[0][0]
"""
}
FLASH_ATTN_4 = {
    "flash_attn/cute/__init__.py": """
import torch
from sft_cli.kernels.attention import sdpa

def flash_attn_varlen_func(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
                           max_seqlen_k=None, softmax_scale=None, causal=False, window_size=(None, None)):
    assert causal and window_size[1] == 0 and max_seqlen_q == int(cu_seqlens_q.diff().max())
    rows = (x.transpose(0, 1)[None] for x in (q, k, v))
    window = None if window_size[0] is None else window_size[0] + 1
    out = sdpa(None, *rows, None, scaling=softmax_scale, cu_seq_lens_q=cu_seqlens_q, sliding_window=window)[0][0]
    return out, None
"""
}
LIGER = {
    "liger_kernel/__init__.py": "",
    "liger_kernel/ops.py": """
from sft_cli.kernels import loss, mlp, norm

class LigerRMSNormFunction:
    @staticmethod
    def forward(ctx, X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None): ...
    @staticmethod
    def apply(X, W, eps, offset, casting_mode, in_place):
        assert casting_mode == ("gemma" if offset else "llama") and not in_place
        return norm.rms_norm(X, W, eps, offset)

class LigerSiLUMulFunction:
    @staticmethod
    def forward(ctx, a, b, gate_multiplier=1.0, down_multiplier=1.0): ...
    apply = staticmethod(mlp.silu_mul)

class LigerFusedLinearCrossEntropyFunction:
    @staticmethod
    def forward(ctx, _input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
                label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None): ...
    @staticmethod
    def apply(_input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
              label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None):
        assert reduction == "sum" and not (lse_square_scale or label_smoothing or softcap or return_z_loss)
        return loss.whole(_input, weight, target), None, None, None
""",
}
FLA = {
    "fla/__init__.py": "",
    "fla/modules/__init__.py": "",
    "fla/modules/fused_norm_gate.py": """
from sft_cli.kernels.gated_norm import gated_rms_norm

def rms_norm_gated(x, g, weight, bias, activation="swish", residual=None, prenorm=False, residual_in_fp32=False,
                   eps=1e-6):
    assert activation == "swish" and bias is None
    return gated_rms_norm(x, g, weight, eps)
""",
}


def write_packages(folder: Path, *packages: dict[str, str]) -> Path:
    """Files of packages, below a folder for PYTHONPATH."""
    for files in packages:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def causal_conv1d(habit: str) -> dict[str, str]:
    """The package with one of its habits."""
    return {"causal_conv1d/__init__.py": CAUSAL_CONV1D[habit]}
