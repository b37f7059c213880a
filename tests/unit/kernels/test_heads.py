from __future__ import annotations

from functools import partial

import pytest
from torch import nn

from sft_cli.kernels import heads


@pytest.fixture(autouse=True)
def definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(heads.HEADS, "sftune", lambda: heads.Heads(heads.rotated, heads.gated))


def layer(*names: str) -> nn.Module:
    """A decoder layer whose attention has these parts."""
    made = nn.Module()
    made.self_attn = nn.ModuleDict({name: nn.RMSNorm(8, eps=1e-5) for name in names})
    return made


def install(*layers: nn.Module, windows: list[int | None]) -> None:
    heads.install(layers, backend="sftune", offset=0.0, windows=windows)


def test_each_attention_gets_its_window_and_the_eps_of_its_norms() -> None:
    plain, normed = (layer("q_proj", "k_proj", "v_proj", "o_proj", *more) for more in ((), ("q_norm", "k_norm")))
    install(plain, normed, nn.Module(), windows=[None, 19, None])
    given = [one.self_attn.forward.keywords for one in (plain, normed) if isinstance(one.self_attn.forward, partial)]
    assert [(options["window"], options["eps"]) for options in given] == [(None, None), (19, 1e-5)]


def test_a_part_that_would_be_left_out_is_no_attention_of_ours() -> None:
    for more in (("query_norm", "key_norm"), ("q_norm",), ("gate_proj",)):
        with pytest.raises(AssertionError, match="would leave out"):
            install(layer("q_proj", "k_proj", "v_proj", "o_proj", *more), windows=[None])
    with pytest.raises(ValueError, match="shorter"):
        install(layer("q_proj"), layer("q_proj"), windows=[None])
