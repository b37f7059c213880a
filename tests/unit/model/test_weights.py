from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.models import CONFIGS, make_model
from support.ranks import on_ranks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from sft_cli.errors import ModelError
from sft_cli.model.build import build_skeleton
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.model.weights import drawn_tensors, load_weights


def weights_of(family: str, seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in make_model(family, seed=seed).transformers_named_parameters()}


@pytest.mark.parametrize("family", list(CONFIGS))
def test_names_are_those_of_transformers(family: str) -> None:
    expected = {name: tuple(p.shape) for name, p in build_skeleton(CONFIGS[family]).named_parameters()}
    assert {name: tuple(p.shape) for name, p in weights_of(family).items()} == expected


def test_drawing_follows_the_rule_of_the_architecture() -> None:
    weights = weights_of("qwen3_5")
    assert weights["model.norm.weight"].eq(0).all()
    assert weights["model.layers.0.linear_attn.norm.weight"].eq(1).all()
    assert weights["model.layers.0.linear_attn.dt_bias"].eq(1).all()
    assert weights["lm_head.weight"].std().item() == pytest.approx(0.2, rel=0.05)
    decay = weights["model.layers.0.linear_attn.A_log"].exp()
    assert 0 < decay.min() <= decay.max() <= 16


def test_seed_and_name_decide_what_is_drawn() -> None:
    one, again, other = weights_of("llama"), weights_of("llama"), weights_of("llama", seed=1)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    assert not torch.equal(one["model.layers.0.mlp.up_proj.weight"], one["model.layers.1.mlp.up_proj.weight"])


def test_drawing_one_module_gives_what_drawing_all_does() -> None:
    skeleton = build_skeleton(CONFIGS["llama"])
    everything = {name: tensor.clone() for name, tensor in drawn_tensors(skeleton, seed=3)}
    alone = dict(drawn_tensors(skeleton, seed=3, modules=[("lm_head", skeleton.lm_head)]))
    assert torch.equal(alone["lm_head.weight"], everything["lm_head.weight"])
    assert all(parameter.is_meta for parameter in skeleton.parameters())


def test_rotary_frequencies_survive_the_meta_device() -> None:
    buffers = dict(make_model("llama").transformers_named_buffers())
    expected = 1 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(buffers["model.rotary_emb.inv_freq"], expected)


def test_a_tied_weight_stays_one_parameter() -> None:
    model = make_model("qwen3")
    assert model.head.linear.weight is model.embedding.weight
    assert "lm_head.weight" not in dict(model.transformers_named_parameters())


def save_source(folder: Path, family: str) -> dict[str, torch.Tensor]:
    weights = {name: tensor.clone() for name, tensor in weights_of(family, seed=9).items()}
    save_file(weights, folder / "model.safetensors")
    return weights


def test_loading_reads_every_tensor(tmp_path: Path) -> None:
    expected = save_source(tmp_path, "llama")
    model = make_model("llama")
    load_weights(model, SafetensorsFolder(tmp_path))
    for name, parameter in model.transformers_named_parameters():
        assert torch.equal(parameter, expected[name])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    weights = save_source(tmp_path, "llama")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        load_weights(make_model("llama"), SafetensorsFolder(tmp_path))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    weights = save_source(tmp_path, "llama")
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(3,\), config\.json says \(64,\)"):
        load_weights(make_model("llama"), SafetensorsFolder(tmp_path))


def drawn_and_loaded(mesh: DeviceMesh, folder: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """On three ranks no dimension of the model divides evenly."""
    model = make_model("qwen3_5", mesh=mesh)
    drawn = gathered(model)
    load_weights(model, SafetensorsFolder(Path(folder)))
    return drawn, gathered(model)


def gathered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: p.full_tensor().detach() if isinstance(p, DTensor) else p.detach()
        for name, p in model.transformers_named_parameters()
    }


def test_shards_are_the_rows_of_the_whole(tmp_path: Path) -> None:
    source = save_source(tmp_path, "qwen3_5")
    expected = weights_of("qwen3_5")
    for drawn, loaded in on_ranks(3, drawn_and_loaded, str(tmp_path)):
        assert all(torch.equal(drawn[name], expected[name]) for name in expected)
        assert all(torch.equal(loaded[name], source[name]) for name in expected)
