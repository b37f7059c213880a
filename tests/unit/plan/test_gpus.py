from __future__ import annotations

import pytest

from sft_cli.errors import UsageError
from sft_cli.plan.gpus import GPUS, find_gpu, peak_bf16_tflops


def test_the_name_may_be_in_capitals() -> None:
    gpu = find_gpu("H200")
    assert gpu.name == "NVIDIA H200"
    assert gpu.memory_gib == pytest.approx(140.4, abs=0.1)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="h2000") as caught:
        find_gpu("h2000")
    assert caught.value.exit_code == 2
    assert caught.value.fix is not None
    assert caught.value.fix.startswith("Did you mean h200?")
    assert all(gpu.key in caught.value.fix for gpu in GPUS)


def test_peaks_by_the_drivers_name() -> None:
    assert peak_bf16_tflops("NVIDIA H200") == 989.0
    assert peak_bf16_tflops("Tesla K80") is None
