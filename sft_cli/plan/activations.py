"""Bytes that one layer keeps for backward, for each token, tensor by tensor.

The counts follow transformers' modules for projections, norms and MLP, and for the delta rule and its convolution
`kernels/reference.py` (a test compares them with what autograd really saves) or flash-linear-attention 0.6. Views, tiny
tensors and the allocator's rounding are left out.
"""

from __future__ import annotations

from sft_cli.plan.architecture import Architecture, DeltaNet, Experts
from sft_cli.plan.flops import DELTA_RULE_CHUNK_TOKENS
from sft_cli.plan.model_types import GENERIC
from sft_cli.recipe.schema import ActivationCheckpointingSection, KernelsSection

FLOAT32_BYTES = 4


def kept_bytes_per_token(
    shape: Architecture, checkpointing: ActivationCheckpointingSection, compute_bytes: int, kernels: KernelsSection
) -> list[float]:
    """Of each layer the bytes a token that it keeps from forward to backward, wherever they wait.

    Args:
        checkpointing: resolved.
        compute_bytes, kernels: see `layer_bytes_per_token`.
    """
    kept = []
    for layer, mode in enumerate(checkpointing.of_layers(shape.layers)):
        if mode == "none":
            kept.append(layer_bytes_per_token(shape, layer, compute_bytes, kernels))
        elif mode == "selective":
            kept.append(selective_bytes_per_token(shape, layer, compute_bytes, kernels))
        else:
            kept.append(float(shape.hidden_size * compute_bytes))
    return kept


def layer_bytes_per_token(shape: Architecture, layer: int, compute_bytes: int, kernels: KernelsSection) -> float:
    """Bytes a token that one layer without activation checkpointing keeps: norms, attention or delta net, MLP.

    Args:
        shape: the model.
        layer: its index.
        compute_bytes: size of an element of the compute dtype.
        kernels: resolved; references and the model's own modules keep more than fused kernels do.
    """
    norm_input = _norm_input_bytes(shape, compute_bytes, kernels)
    norms = shape.norms_per_layer * shape.hidden_size * (norm_input + compute_bytes)
    if shape.sparse[layer]:
        assert shape.experts is not None, "a sparse layer without its experts"
        mlp = _experts_bytes(shape.hidden_size, shape.experts, compute_bytes)
    else:
        # gate, up, silu(gate), which Liger computes again, and the product that the down projection multiplies, which a
        # compiled MLP does, too.
        kept = 3 if kernels.mlp == "liger" else 2 if has_compiled_mlp(shape, kernels) else 4
        mlp = kept * shape.intermediate_size * compute_bytes
    if shape.linear_attention[layer]:
        assert shape.delta_net is not None, "a linear-attention layer without its shape"
        return norms + mlp + _delta_net_bytes(shape.delta_net, compute_bytes, kernels)
    return norms + mlp + _attention_bytes(shape, compute_bytes, kernels)


def selective_bytes_per_token(shape: Architecture, layer: int, compute_bytes: int, kernels: KernelsSection) -> float:
    """Bytes a token that one layer under selective checkpointing keeps: its input, what its matrix products, attention
    and delta rule give, and what the latter two and experts save inside. Norms, rotation, SiLU, gates and convolution
    are computed again.

    Args as of `layer_bytes_per_token`.
    """
    # The layer's input and the mixer's output projection, which the second norm reads; the down projection's output
    # only where a norm comes after it.
    residual = (2 if shape.norms_per_layer < 4 else 3) * shape.hidden_size * compute_bytes
    if shape.sparse[layer]:
        assert shape.experts is not None, "a sparse layer without its experts"
        mlp = _selective_experts_bytes(shape.hidden_size, shape.experts, compute_bytes)
    else:
        mlp = 2 * shape.intermediate_size * compute_bytes
    if shape.linear_attention[layer]:
        assert shape.delta_net is not None, "a linear-attention layer without its shape"
        return residual + mlp + _selective_delta_net_bytes(shape.delta_net, compute_bytes, kernels)
    # Projections, a gate as wide as the queries, and the output; sdpa's is laid out anew, and both are kept.
    outputs = 2 if kernels.attention == "sdpa" else 1
    queries = (2 if shape.gated_attention else 1) + outputs
    attention = (queries * shape.query_dim + 2 * shape.key_value_dim) * compute_bytes
    return residual + mlp + attention


def has_compiled_mlp(shape: Architecture, kernels: KernelsSection) -> bool:
    """Whether dense MLPs are regions that torch.compile makes one of."""
    return kernels.compile and kernels.mlp == "torch" and shape.swiglu


def _has_compiled_norms(shape: Architecture, kernels: KernelsSection) -> bool:
    return kernels.compile and kernels.norm == "torch" and shape.family != GENERIC


def _norm_input_bytes(shape: Architecture, compute_bytes: int, kernels: KernelsSection) -> int:
    """Of a norm's input, for each of its elements: kernels and a compiled norm keep it as it came, a module the input
    and the normalised value in float32."""
    is_fused = kernels.norm != "torch" or _has_compiled_norms(shape, kernels)
    return compute_bytes if is_fused else 2 * FLOAT32_BYTES


def backward_bytes_per_token(shape: Architecture, compute_bytes: int, kernels: KernelsSection) -> float:
    """Bytes a token of what is in flight at the widest point of a layer: gradients of gate and up, where that is
    compiled also their product, in float8 too where that multiplies it; and the residual."""
    widths = []
    if not all(shape.sparse):
        each = 1 if not has_compiled_mlp(shape, kernels) else 1.5 if kernels.float8 == "none" else 1.75
        widths.append(each * shape.intermediate_size)
    if shape.experts is not None:
        widths.append(shape.experts.per_token * (shape.experts.intermediate_size + shape.hidden_size))
    return (2 * max(widths) + shape.hidden_size) * compute_bytes


def _experts_bytes(hidden_size: int, experts: Experts, compute_bytes: int) -> float:
    # A token's copy for each expert it goes to, in and out; gate, up, silu(gate), product.
    routed = experts.per_token * (2 * hidden_size + 4 * experts.intermediate_size)
    # The same for the shared one, and its output before and after its gate.
    shared = 4 * experts.shared_intermediate_size + 2 * hidden_size
    router = experts.count * FLOAT32_BYTES
    return (routed + shared) * compute_bytes + router


def _selective_experts_bytes(hidden_size: int, experts: Experts, compute_bytes: int) -> float:
    # Routed experts are one call, which keeps all that it saves; of the shared one the products are kept.
    routed = experts.per_token * (2 * hidden_size + 4 * experts.intermediate_size) + hidden_size
    shared = 2 * experts.shared_intermediate_size + (hidden_size if experts.shared_intermediate_size else 0)
    router = experts.count * (FLOAT32_BYTES + compute_bytes)
    return (routed + shared) * compute_bytes + router


def _selective_delta_net_bytes(delta: DeltaNet, compute_bytes: int, kernels: KernelsSection) -> float:
    projections = delta.conv_dim + delta.value_dim + 2 * delta.value_heads
    if kernels.linear_attention == "torch":
        inside = _reference_rule_bytes(delta, compute_bytes)
    else:
        # Of what it saves, v and beta are its inputs.
        inside = _fused_rule_bytes(delta, compute_bytes) - (delta.value_dim + delta.value_heads) * compute_bytes
    return (projections + delta.value_dim) * compute_bytes + inside


def _attention_bytes(shape: Architecture, compute_bytes: int, kernels: KernelsSection) -> float:
    query, key_value = shape.query_dim, shape.key_value_dim
    # Rotated query and key, value, output as attention lays it out and as the projection reads it.
    elements = 3 * query + 2 * key_value
    if shape.gated_attention:
        # The gate's sigmoid and the gated output.
        elements += 2 * query
    head_norms = (query + key_value) * _norm_input_bytes(shape, compute_bytes, kernels) if shape.head_norms else 0
    if shape.head_norms and shape.gated_attention and _has_compiled_norms(shape, kernels):
        # The queries that it keeps lie beside their gates.
        elements += query
    return elements * compute_bytes + head_norms


def _delta_net_bytes(delta: DeltaNet, compute_bytes: int, kernels: KernelsSection) -> float:
    convolution = _reference_conv_bytes if kernels.conv == "torch" else _fused_conv_bytes
    rule = _reference_rule_bytes if kernels.linear_attention == "torch" else _fused_rule_bytes
    # Gated norm: delta rule's output, gate, own output; a module has input, normalised value and SiLU of the gate in
    # float32 besides.
    wide = 0 if kernels.gated_norm == "fla" or kernels.compile else 3 * FLOAT32_BYTES
    gated_norm = delta.value_dim * (wide + 3 * compute_bytes)
    return convolution(delta, compute_bytes) + rule(delta, compute_bytes) + gated_norm


def _reference_conv_bytes(delta: DeltaNet, compute_bytes: int) -> float:
    # The projection, for each further tap a shifted and a masked copy, the sum before SiLU.
    return 2 * delta.conv_kernel * delta.conv_dim * compute_bytes


def _fused_conv_bytes(delta: DeltaNet, compute_bytes: int) -> float:
    return delta.conv_dim * compute_bytes


def _reference_rule_bytes(delta: DeltaNet, compute_bytes: int) -> float:
    # In float32, with keys and queries repeated for each value head. Keys: q, k, beta k, right side, solution, and
    # three slices in the scan; values: v, right side, solution, one slice. Five C x C matrices.
    keys = delta.value_heads * delta.key_head_dim
    squares = delta.value_heads * DELTA_RULE_CHUNK_TOKENS
    states = keys * delta.value_head_dim / DELTA_RULE_CHUNK_TOKENS
    return (2 * delta.key_dim + 8 * keys + 4 * delta.value_dim + 5 * squares + 3 * states) * FLOAT32_BYTES


def _fused_rule_bytes(delta: DeltaNet, compute_bytes: int) -> float:
    # Normalised q and k with their scales, v, decay, beta, and one C x C matrix; states are computed again in backward.
    elements = 2 * delta.key_dim + delta.value_dim + delta.value_heads * (DELTA_RULE_CHUNK_TOKENS + 1)
    return elements * compute_bytes + (2 * delta.key_heads + delta.value_heads) * FLOAT32_BYTES
