"""Every backend of every kernel slot, as facts: what it is, what it needs and how it is installed. Imports no torch.

The functions themselves are loaded by the kernels room, which has a file for each slot and each package.
"""

from __future__ import annotations

from dataclasses import dataclass

AMPERE, HOPPER = (8, 0), (9, 0)
HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Package:
    """Where a backend's code comes from."""

    name: str
    """As its users call it."""
    distribution: str
    """What pip calls it, for its version."""
    module: str
    """The module whose absence means that it is not installed."""
    install: str
    oldest: tuple[int, ...]
    """The version whose functions the kernels room calls."""
    needs: tuple[str, ...] = ()
    """Distributions that it does not ask pip for."""
    is_extra: bool = True
    """Comes with sftune's extra `gpu`."""


FLA = Package("flash-linear-attention", "fla-core", "fla", "pip install 'flash-linear-attention>=0.6' tilelang", (0, 6))
FLASH_QLA = Package(
    "flash-qla", "flash-qla", "flash_qla", "pip install 'flash-qla>=0.1.3' 'tilelang>=0.1.15'", (0, 1, 3),
    needs=("tilelang",),
)  # fmt: skip
LIGER = Package("liger-kernel", "liger-kernel", "liger_kernel", "pip install 'liger-kernel>=0.8.5'", (0, 8, 5))
CAUSAL_CONV1D = Package(
    "causal-conv1d", "causal-conv1d", "causal_conv1d",
    "pip install --no-build-isolation 'causal-conv1d>=1.7'", (1, 7), is_extra=False,
)  # fmt: skip
FLASH_ATTN = Package(
    "flash-attn", "flash-attn", "flash_attn", "pip install --no-build-isolation 'flash-attn>=2.8,<3'", (2, 8),
    is_extra=False,
)  # fmt: skip
FLASH_ATTN_4 = Package(
    "flash-attn-4", "flash-attn-4", "flash_attn.cute", "pip install --pre 'flash-attn-4[cu13]'", (4, 0), is_extra=False
)
TRITON = Package("Triton", "triton", "triton", "pip install 'triton>=3.6'", (3, 6))
PACKAGES = (FLA, FLASH_QLA, LIGER, CAUSAL_CONV1D, FLASH_ATTN, FLASH_ATTN_4)

TF32 = "Triton rounds float32 matrix products to TF32"


@dataclass(frozen=True)
class Backend:
    """One way to fill a slot."""

    name: str
    """The word in the recipe."""
    because: str
    """What it does, for the plan."""
    package: Package | None = None
    """None: it comes with torch."""
    gpu_only: bool = True
    dtypes: tuple[str, ...] = ("float32", *HALVES)
    no_other_dtype: str = "it has no float32"
    compute_capability: tuple[int, int] | None = None
    """The oldest GPU; None where any will do."""
    head_dims: str | None = None
    """In words; None where any will do."""
    is_automatic: bool = True
    """Whether `auto` takes it; a recipe may name the others."""

    @property
    def made_for(self) -> str:
        """What it can run, as its makers say."""
        parts = ["a GPU" if self.gpu_only else "any device", " or ".join(self.dtypes)]
        if self.compute_capability is not None:
            parts.append("compute capability " + ".".join(map(str, self.compute_capability)) + " or newer")
        return ", ".join([*parts, self.head_dims] if self.head_dims else parts)


_OWN = "the model's own module"
_HALVES_FROM_AMPERE = {"dtypes": HALVES, "compute_capability": AMPERE}

BACKENDS: dict[str, tuple[Backend, ...]] = {
    "linear_attention": (
        Backend(
            "flash_qla", "the chunked delta rule of flash-qla (TileLang), which keeps packed samples apart", FLASH_QLA,
            dtypes=HALVES, compute_capability=HOPPER, head_dims="key and value heads of 128",
        ),
        Backend(
            "fla", "the chunked delta rule of flash-linear-attention, which keeps packed samples apart", FLA,
            dtypes=HALVES, no_other_dtype=TF32, compute_capability=AMPERE, head_dims="heads up to 256",
        ),
        Backend("torch", "the reference; it keeps packed samples apart and runs on any device", gpu_only=False),
    ),
    "conv": (
        Backend(
            "sftune", "sftune's own convolution with SiLU, which writes queries, keys and values each by itself",
            TRITON, compute_capability=AMPERE, head_dims="four taps",
        ),
        Backend(
            "causal_conv1d", "causal-conv1d's convolution with SiLU, told each token's segment",
            CAUSAL_CONV1D, head_dims="channels in multiples of 8",
        ),
        Backend(
            "fla", "flash-linear-attention's convolution with SiLU in one kernel, which keeps packed samples apart",
            FLA, dtypes=HALVES, no_other_dtype=TF32, compute_capability=AMPERE,
        ),
        Backend("torch", "the reference; it keeps packed samples apart and runs on any device", gpu_only=False),
    ),
    "attention": (
        Backend(
            "varlen", "all packed samples in one call of torch's FlashAttention, told where each begins",
            dtypes=HALVES, compute_capability=AMPERE, head_dims="heads up to 256, in multiples of 8",
        ),
        Backend(
            "flash_attention_2", "all packed samples in one call of FlashAttention 2", FLASH_ATTN,
            dtypes=HALVES, compute_capability=AMPERE, head_dims="heads up to 256, in multiples of 8",
            is_automatic=False,
        ),
        Backend(
            "flash_attention_4", "all packed samples in one call of FlashAttention 4", FLASH_ATTN_4,
            dtypes=HALVES, compute_capability=HOPPER, head_dims="heads up to 256, in multiples of 8",
            is_automatic=False,
        ),
        Backend("flex", "torch's FlexAttention with a block mask, compiled", is_automatic=False),
        Backend("sdpa", "torch's scaled_dot_product_attention, one call a packed sample", gpu_only=False),
    ),
    "norm": (
        Backend(
            "sftune", "sftune's own RMSNorm in one kernel, which takes the residual stream's sums along", TRITON,
            compute_capability=AMPERE,
        ),
        Backend("liger", "Liger-Kernel's RMSNorm in one kernel", LIGER, compute_capability=AMPERE),
        Backend("torch", _OWN, gpu_only=False),
    ),
    "gated_norm": (
        Backend("fla", "flash-linear-attention's gated RMSNorm in one kernel", FLA, compute_capability=AMPERE),
        Backend("torch", _OWN, gpu_only=False),
    ),
    "mlp": (
        Backend("liger", "Liger-Kernel's SiLU and product in one kernel", LIGER, compute_capability=AMPERE),
        Backend("torch", _OWN, gpu_only=False),
    ),
    "loss": (
        Backend(
            "liger", "Liger-Kernel's projection and cross-entropy in one", LIGER, compute_capability=AMPERE,
            is_automatic=False,
        ),
        Backend(
            "chunked",
            "float32 logits of all tokens are the largest tensor of a step; chunks give the same loss",
            gpu_only=False,
        ),
        Backend("torch", "logits of all positions at once", gpu_only=False),
    ),
}  # fmt: skip
"""By slot, fastest first."""


def find_backend(slot: str, name: str) -> Backend:
    """The backend that a recipe's word means; the loader has refused what is not built."""
    return next(backend for backend in BACKENDS[slot] if backend.name == name)
