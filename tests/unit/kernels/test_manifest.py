from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from support.models import make_model

from sft_cli.kernels.manifest import describe_kernels, find_kernels

GOT = {
    "linear_attention": "torch",
    "conv": "torch",
    "attention": "sdpa",
    "norm": "torch",
    "gated_norm": "torch",
    "mlp": "torch",
    "loss": "chunked",
}


def manifest(family: str) -> dict[str, dict[str, str | None]]:
    model = make_model(family)
    found = find_kernels(model, model.delta_net_blocks, model.config._attn_implementation, model.head.loss)
    return describe_kernels(found, asked=dict.fromkeys(GOT, "auto"), got=GOT)


def test_names_what_runs() -> None:
    slots = manifest("qwen3_5")
    assert set(slots) == set(GOT)
    assert slots["linear_attention"]["callable"] == "sft_cli.kernels.reference.gated_delta_rule"
    assert slots["linear_attention"]["package"] == "sftune"
    assert slots["norm"]["package"] == "transformers"
    assert slots["norm"]["version"] == version("transformers")
    assert all(Path(str(slot["file"])).is_file() for slot in slots.values())


@pytest.mark.parametrize("slot", ["linear_attention", "conv", "gated_norm"])
def test_a_slot_that_the_model_lacks_got_nothing(slot: str) -> None:
    assert manifest("llama")[slot] == {
        "asked": "auto",
        "got": None,
        "callable": None,
        "package": None,
        "version": None,
        "file": None,
    }
