"""`sftune check-kernels`, whole, beside packages that are broken."""

from __future__ import annotations

import json
import time
from pathlib import Path

from support.busy import allowed
from support.kernel_packages import causal_conv1d, write_packages
from support.no_network import python_path
from support.sftune import sftune

CRASHES = {"flash_attn/__init__.py": "import ctypes\nctypes.string_at(0)\n"}


def test_every_reference_is_checked_in_half_a_minute_whatever_is_installed(tmp_path: Path) -> None:
    packages = write_packages(tmp_path / "packages", causal_conv1d("broken"), CRASHES)
    start = time.perf_counter()
    ended = sftune("check-kernels", "--json", cwd=tmp_path, PYTHONPATH=python_path(packages), CUDA_VISIBLE_DEVICES="")
    seconds = time.perf_counter() - start
    assert ended.code == 0, ended.err
    assert ended.err == ""
    document = json.loads(ended.out)
    assert document["ok"]
    found = {(line["slot"], line["backend"]): line for line in document["slots"]}
    for slot in ("linear_attention", "conv", "norm", "gated_norm", "mlp", "loss"):
        assert found[slot, "torch"]["status"] == "ok"
        assert found[slot, "torch"]["backward_error"] < 1e-5
    assert found["attention", "sdpa"]["status"] == found["loss", "chunked"]["status"] == "ok"
    assert found["conv", "causal_conv1d"]["status"] == found["attention", "flash_attention_2"]["status"] == "broken"
    assert found["conv", "causal_conv1d"]["detail"] == "OSError: undefined symbol: x"
    assert found["attention", "flash_attention_2"]["detail"].startswith("killed by SIGSEGV")
    assert seconds < allowed(30)
