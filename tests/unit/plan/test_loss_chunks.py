from __future__ import annotations

import pytest

from sft_cli.plan.loss_chunks import GPU_BYTES, chunk_positions


@pytest.mark.parametrize(
    ("count", "words", "size", "chunk"),
    [
        (8192, 248_320, 2, 4096),
        (8192, 248_320, 4, 2048),
        (8649, 248_320, 2, 2944),  # three, of which two would be too long
        (1, 248_320, 2, 128),
        (0, 248_320, 2, 128),
        (8192, 1024, 2, 8192),
        (3, 1 << 31, 2, 1),
    ],
)
def test_chunks_are_few_and_alike(count: int, words: int, size: int, chunk: int) -> None:
    assert chunk_positions(count, words, size, "cuda") == chunk


@pytest.mark.parametrize("count", range(1, 20_000, 997))
@pytest.mark.parametrize("words", [50_257, 151_936, 248_320])
def test_no_chunk_is_too_large(count: int, words: int) -> None:
    assert min(count, chunk_positions(count, words, 2, "cuda")) * words * 2 <= GPU_BYTES
