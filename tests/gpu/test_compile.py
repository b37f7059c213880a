"""`kernels.compile` at the width of Qwen3.8-27B: the same numbers, nothing compiled after step 3, and how fast."""

from __future__ import annotations

import pytest
from gpu.regions import line, off_by, steps
from torch.distributed.device_mesh import DeviceMesh


@pytest.mark.usefixtures("no_waiting")
def test_compiled_is_bfloat16s_rounding_away(mesh: DeviceMesh) -> None:
    plain = steps(mesh, compiles=False)
    compiled = steps(mesh, compiles=True)
    print(f"\n{line('bfloat16', plain)}\n{line('compiled', compiled)}\ngradient off by {off_by(compiled, plain):.2e}")
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-3)
    assert off_by(compiled, plain) < 2e-2
    assert compiled.graphs == 0
