from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.models import CONFIGS, make_model
from support.ranks import on_ranks
from support.tensors import whole
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from sft_cli.errors import ModelError
from sft_cli.kernels.loss import LOSS
from sft_cli.model.build import build, build_skeleton
from sft_cli.model.families import FAMILIES
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.model.tensor_names import TensorNames
from sft_cli.model.weights import drawn_tensors, load_weights, materialise


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


def test_a_rule_that_stands_with_the_parent_is_found() -> None:
    """Of Qwen3-Next's router, in 5.24: its own module's rule leaves it as it was, uninitialised memory."""
    weights = weights_of("qwen3_next")
    for name in ("mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
        assert weights[f"model.layers.0.{name}"].std().item() == pytest.approx(0.2, rel=0.1)


def test_a_tensor_without_a_rule_is_an_error_and_not_what_memory_held() -> None:
    skeleton = build_skeleton(CONFIGS["llama"])
    skeleton.model.layers[0].mlp.extra = torch.nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(ModelError, match=r"no rule to draw the weights of model\.layers\.0\.mlp"):
        dict(drawn_tensors(skeleton, seed=0))


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
    written: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        location = TensorNames(FAMILIES[family], None).locate(name)
        written |= zip(location.names(tensor.shape), map(torch.clone, location.split(tensor)), strict=True)
    save_file(written, folder / "model.safetensors")
    return weights


def test_the_parts_of_experts_are_those_of_the_published_checkpoints(tmp_path: Path) -> None:
    whole = save_source(tmp_path, "qwen3_next")["model.layers.2.mlp.experts.gate_up_proj"]
    source = SafetensorsFolder(tmp_path)
    prefix = "model.layers.2.mlp.experts.5."
    assert torch.equal(source.rows(f"{prefix}gate_proj.weight", slice(None)), whole[5, :24])
    assert torch.equal(source.rows(f"{prefix}up_proj.weight", slice(None)), whole[5, 24:])
    location = TensorNames(FAMILIES["qwen3_next"], source).locate("model.layers.2.mlp.experts.gate_up_proj")
    rows = torch.empty_like(whole[4:6])
    location.read_into(rows, source, 4)
    assert torch.equal(rows, whole[4:6])


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


def test_a_dtype_that_no_export_could_give_back_is_named(tmp_path: Path) -> None:
    """At the start of a run, and not where it would be exported."""
    weights = weights_of("llama")
    save_file(
        {**weights, "model.norm.weight": weights["model.norm.weight"].to(torch.float8_e4m3fn)},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ModelError, match=r"model\.norm\.weight is stored as F8_E4M3"):
        load_weights(make_model("llama"), SafetensorsFolder(tmp_path))


def test_a_tied_head_that_is_another_tensor_is_refused(tmp_path: Path) -> None:
    """transformers loads such a model untied; trained tied, it would be another one. An equal copy is harmless."""
    weights = weights_of("qwen3")
    copy = weights["model.embed_tokens.weight"].clone()
    save_file({**weights, "lm_head.weight": copy}, tmp_path / "model.safetensors")
    load_weights(make_model("qwen3"), SafetensorsFolder(tmp_path))
    save_file({**weights, "lm_head.weight": copy + 1}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"ties the head to the embedding, and the weights hold another lm_head"):
        load_weights(make_model("qwen3"), SafetensorsFolder(tmp_path))


@pytest.mark.parametrize("surplus", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight"])
def test_a_tensor_of_a_layer_that_the_config_does_not_have_is_refused(surplus: str, tmp_path: Path) -> None:
    beside = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2), "mtp.layers.0.weight": torch.ones(2)}
    weights = {**weights_of("llama"), **beside}
    save_file(weights, tmp_path / "model.safetensors")
    load_weights(make_model("llama"), SafetensorsFolder(tmp_path))
    save_file({**weights, surplus: torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"1 tensors of layers that config.json has no place for, such as {surplus}"):
        load_weights(make_model("llama"), SafetensorsFolder(tmp_path))


Tensors = dict[str, torch.Tensor]
SHARDED = ("qwen3_5", "qwen3_next")


def drawn_and_loaded(mesh: DeviceMesh, folder: str) -> dict[str, tuple[Tensors, Tensors]]:
    """Per family. On three ranks no dimension of the model divides evenly."""
    found = {}
    for family in SHARDED:
        model = make_model(family, mesh=mesh)
        drawn = gathered(model)
        load_weights(model, SafetensorsFolder(Path(folder, family)))
        found[family] = drawn, gathered(model)
    return found


def gathered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: whole(p) for name, p in model.transformers_named_parameters()}


def test_shards_are_the_rows_of_the_whole(tmp_path: Path) -> None:
    """Of Qwen3-Next from one tensor an expert: six experts, two a rank."""
    sources = {}
    for family in SHARDED:
        (tmp_path / family).mkdir()
        sources[family] = save_source(tmp_path / family, family)
    expected = {family: weights_of(family) for family in SHARDED}
    for found in on_ranks(3, drawn_and_loaded, str(tmp_path)):
        for family, (drawn, loaded) in found.items():
            assert all(torch.equal(drawn[name], expected[family][name]) for name in expected[family])
            assert all(torch.equal(loaded[name], sources[family][name]) for name in expected[family])


def hybrid(mesh: DeviceMesh, folder: str) -> Tensors:
    """Two replicas of two shards; one parameter is whole everywhere and stays float32."""
    model = build(CONFIGS["qwen3_5"], family="qwen3_5", dtype=torch.float32, loss=LOSS["torch"]())
    replicas = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    whole = {parameter for name, parameter in model.named_parameters() if name.endswith("A_log")}
    fully_shard(model, mesh=replicas, ignored_params=whole)
    materialise(model, CONFIGS["qwen3_5"], torch.device("cpu"))
    load_weights(model, SafetensorsFolder(Path(folder)))
    assert all(isinstance(p, DTensor) != name.endswith("A_log") for name, p in model.named_parameters())
    return gathered(model)


def test_replicas_of_shards_and_what_is_not_sharded(tmp_path: Path) -> None:
    source = {name: tensor.bfloat16() for name, tensor in weights_of("qwen3_5", seed=9).items()}
    save_file(source, tmp_path / "model.safetensors")
    for found in on_ranks(4, hybrid, str(tmp_path)):
        assert all(torch.equal(found[name], tensor.float()) for name, tensor in source.items())


def offloaded(mesh: DeviceMesh) -> dict[str, str]:
    """Where parameters and buffers are; `meta` stands for the CPU beside a GPU."""
    model = build(CONFIGS["llama"], family="llama", dtype=torch.float32, loss=LOSS["torch"]())
    fully_shard(model, mesh=mesh, ignored_params={model.head.norm.weight})
    materialise(model, CONFIGS["llama"], torch.device("cpu"), shards_on=torch.device("meta"))
    named = [*model.transformers_named_parameters(), *model.transformers_named_buffers()]
    return {name: tensor.device.type for name, tensor in named}


def test_shards_may_live_elsewhere_than_the_rest() -> None:
    devices = on_ranks(1, offloaded)[0]
    elsewhere = {name for name, device in devices.items() if device == "meta"}
    assert "model.norm.weight" not in elsewhere
    assert {name for name in devices if "inv_freq" in name}.isdisjoint(elsewhere)
    assert len(elsewhere) == len(dict(make_model("llama").named_parameters())) - 1


def test_nothing_is_read_before_all_is_known_to_fit(tmp_path: Path) -> None:
    weights = save_source(tmp_path, "llama")
    save_file({**weights, "lm_head.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    model, folder = make_model("llama"), SafetensorsFolder(tmp_path)
    with pytest.raises(ModelError):
        load_weights(model, folder)
    assert folder.bytes_read == 0
