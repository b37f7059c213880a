from __future__ import annotations

import pytest

from sft_cli.telemetry.profile.context import Context
from sft_cli.telemetry.profile.kinds import KINDS, kind_of

NOWHERE = Context("forward")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "GEMM",
            "aten::mm aten::addmm aten::bmm aten::_scaled_mm nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT "
            "sm90_xmma_gemm_bf16bf16_bf16f32 void_cutlass::Kernel2<cutlass_80_tensorop_bf16> "
            "gemv2T_kernel_val ampere_bf16_s16816gemm_bf16_128x128 cublasLt::splitKreduce_kernel",
        ),
        (
            "attention",
            "aten::_scaled_dot_product_flash_attention aten::_flash_attention_forward "
            "pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel fmha_cutlassF_bf16",
        ),
        (
            "delta rule",
            "chunk_gated_delta_rule_fwd_kernel_h_blockdim64 chunk_bwd_kernel_dqkwg chunk_local_cumsum_scalar_kernel "
            "chunk_scaled_dot_kkt_fwd_kernel solve_tril_16x16_kernel recompute_w_u_fwd_kernel l2norm_fwd_kernel",
        ),
        ("conv", "aten::conv1d causal_conv1d_fwd_kernel aten::_convolution"),
        ("norm", "_rms_norm_forward_kernel layer_norm_gated_fwd_kernel aten::native_layer_norm"),
        ("loss", "liger_cross_entropy_kernel aten::_log_softmax aten::nll_loss_forward"),
        (
            "elementwise",
            "aten::mul aten::add_ aten::sigmoid aten::rsqrt aten::_foreach_mul_ aten::sum "
            "void_at::native::vectorized_elementwise_kernel<4,at::native::BinaryFunctor> "
            "at::native::reduce_kernel<512,1> _swiglu_forward_kernel triton_poi_fused_mul_0",
        ),
        (
            "copy",
            "aten::copy_ aten::_to_copy aten::cat aten::index_select Memcpy Memset aten::embedding "
            "at::native::CatArrayBatchedCopy at::native::index_elementwise_kernel aten::fill_ split_with_sizes_copy",
        ),
        (
            "communication",
            "ncclDevKernel_AllGather_RING_LL c10d::allreduce_ _c10d_functional::wait_tensor gloo:all_reduce",
        ),
        ("other", "aten::view autograd::engine::evaluate_function:"),
    ],
)
def test_names(kind: str, names: str) -> None:
    assert kind in KINDS
    assert {name: kind_of(name, NOWHERE) for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_a_slot_goes_before_a_name_and_communication_and_the_update_before_both() -> None:
    assert kind_of("aten::bmm", Context("backward", "linear_attention")) == "delta rule"
    assert kind_of("aten::copy_", Context("forward", "gated_norm")) == "norm"
    assert kind_of("aten::copy_", Context("forward", "loss")) == "loss"
    assert kind_of("nvjet_tst", Context("forward", "loss")) == "GEMM"
    assert kind_of("aten::mul", Context("optimizer")) == "optimizer"
    assert kind_of("ncclDevKernel_ReduceScatter", Context("optimizer")) == "communication"
