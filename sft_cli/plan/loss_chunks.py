"""How many positions the chunked loss takes at once (`kernels/loss.py`)."""

from __future__ import annotations

GPU_BYTES = 2 << 30
"""Of a chunk's logits. Large, as each chunk is three products and reads and writes the weight's gradient; and so few
that no place in them is beyond 2^31."""
HOST_POSITIONS = 1024
"""On a CPU, where torch's operations make float32 copies of the logits."""
_TILE = 128
"""Of rows in a GEMM."""


def most_positions(words: int, element_size: int, device: str) -> int:
    """Of a chunk, at least 1.

    Args:
        words: of the vocabulary.
        element_size: bytes of a logit.
        device: "cuda" or "cpu".
    """
    if device != "cuda":
        return HOST_POSITIONS
    most = max(1, GPU_BYTES // (words * element_size))
    return most if most < _TILE else most // _TILE * _TILE


def chunk_positions(count: int, words: int, element_size: int, device: str) -> int:
    """Positions a chunk, of `count`: as few chunks as may be, all about the same length, in multiples of 128."""
    most = most_positions(words, element_size, device)
    chunks = max(1, -(-count // most))
    alike = max(1, -(-count // chunks))
    return min(most, -(-alike // _TILE) * _TILE)
