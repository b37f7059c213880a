"""Weights into a sharded model: drawn from a seed, or read from safetensors, each rank only what it holds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel

from sft_cli.errors import ModelError
from sft_cli.model.build import build_skeleton
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import DTYPES, SafetensorsFolder
from sft_cli.model.tensor_names import TensorNames

CPU = torch.device("cpu")


def materialise(
    model: LanguageModel,
    config: dict[str, Any],
    device: torch.device,
    *,
    shards_on: torch.device | None = None,
    code_folder: Path | None = None,
) -> None:
    """Gives a model on meta its storage, and its non-persistent buffers (`inv_freq`) the values that meta lost.

    Args:
        config: the config.json that the model was built from.
        shards_on: where sharded parameters live, if not on `device`: the CPU, where they are offloaded. Buffers, and
            parameters that every rank has whole, are on `device`.
        code_folder: whose code it was built with, see `build_skeleton`.
    """

    def storage(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=(shards_on or device) if isinstance(tensor, DTensor) else device)

    model._apply(storage)  # `to_empty` of several devices
    model.tie()
    buffers = dict(model.transformers_named_buffers())
    skeleton = build_skeleton(config, code_folder=code_folder)
    for name, value in drawn_tensors(skeleton, seed=0, modules=_owners(skeleton, skeleton.named_buffers())):
        if name in buffers:
            buffers[name].copy_(value)


@torch.no_grad()
def draw_weights(
    model: LanguageModel, config: dict[str, Any], *, seed: int, device: torch.device, code_folder: Path | None = None
) -> None:
    """Random weights by transformers' own rule; the same on any number of ranks.

    Args:
        device: where they are drawn, each module whole: a GPU has other ones than a CPU has for the same seed.
    """
    parameters = dict(model.transformers_named_parameters())
    for name, value in drawn_tensors(build_skeleton(config, code_folder=code_folder), seed=seed, device=device):
        if name in parameters:
            local = _local(parameters[name])
            local.copy_(value[_local_rows(parameters[name])])


@torch.no_grad()
def load_weights(model: LanguageModel, folder: SafetensorsFolder) -> int:
    """Weights from a model folder; each rank reads the rows that it holds, once all tensors are known to fit.

    Returns:
        Bytes that the model's tensors have in the folder, over all ranks.

    Raises:
        ModelError: a tensor is missing, left over, has another shape, or is of a dtype that is not trained.
    """
    names, taken = TensorNames(model.family, folder), set[str]()
    for name, parameter in model.transformers_named_parameters():
        location = names.locate(name)
        location.require(folder, parameter.shape)
        taken.update(location.names(parameter.shape))
    _require_all_layers_taken(model, names, folder, taken)
    if model.tied:
        _require_same_head(model, names, folder)
    for name, parameter in model.transformers_named_parameters():
        local = _local(parameter)
        if local.numel():
            names.locate(name).read_into(local, folder, _local_rows(parameter).start or 0)
    return sum(folder.stored(name).size_bytes for name in taken)


def _require_all_layers_taken(
    model: LanguageModel, names: TensorNames, folder: SafetensorsFolder, taken: set[str]
) -> None:
    """ModelError where a layer has tensors that config.json has no place for: a bias, a layer more.

    Other parts, such as a vision tower, are not the model's.
    """
    layers = names.locate("model.layers.").whole
    # Old checkpoints of Llama hold the buffer `inv_freq`.
    ignored = re.compile("|".join([r"inv_freq$", *model.ignored_weights]))
    surplus = [name for name in folder.names() if name.startswith(layers) and name not in taken]
    surplus = [name for name in surplus if not ignored.search(name)]
    if surplus:
        raise ModelError(
            f"the weights hold {len(surplus)} tensors of layers that config.json has no place for, such as "
            f"{surplus[0]}: without them it is another model",
            where=str(folder.path),
            fix="Use a folder whose safetensors belong to its config.json.",
        )


def _require_same_head(model: LanguageModel, names: TensorNames, folder: SafetensorsFolder) -> None:
    """ModelError where a head is stored beside the embedding that it is tied to, and is another one.

    transformers would load such a model untied, whatever its config says.
    """
    if names.head in folder and not _has_same_rows(
        folder, names.locate("model.embed_tokens.weight").whole, names.head, _local_rows(model.embedding.weight)
    ):
        raise ModelError(
            f"config.json ties the head to the embedding, and the weights hold another {names.head}",
            where=str(folder.path),
            fix="Write `tie_word_embeddings: false` in config.json if the head is to be one of its own, or take the "
            "model from its source again.",
        )


def _has_same_rows(folder: SafetensorsFolder, name: str, other: str, rows: slice) -> bool:
    """Whether two matrices have the same values there; a few rows of them are in memory at a time."""
    shape = folder.shape(name)
    if folder.shape(other) != shape or folder.dtype(other) not in DTYPES:
        return False
    start, stop, _ = rows.indices(shape[0])
    for first in range(start, stop, 1024):
        few = slice(first, min(first + 1024, stop))
        one, another = folder.rows(name, few), folder.rows(other, few)
        if not torch.equal(one.to(another.dtype), another):
            return False
    return True


def _local(parameter: nn.Parameter) -> Tensor:
    """What this rank holds of it; possibly nothing."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _local_rows(parameter: Tensor) -> slice:
    """The rows of dimension 0 on this rank; FSDP2 splits as `torch.chunk`: equal parts, the last ones short."""
    if not isinstance(parameter, DTensor):
        return slice(None)
    start, count = 0, parameter.shape[0]
    for axis, placement in enumerate(parameter.placements):
        if not isinstance(placement, Shard):
            continue
        assert placement.dim == 0, "FSDP2 shards dimension 0"
        part = -(-count // parameter.device_mesh.size(axis))
        offset = min(part * parameter.device_mesh.get_local_rank(axis), count)
        start, count = start + offset, min(part, count - offset)
    return slice(start, start + count)


def drawn_tensors(
    skeleton: PreTrainedModel,
    *,
    seed: int,
    modules: Iterable[tuple[str, nn.Module]] | None = None,
    device: torch.device = CPU,
) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by transformers' initialisation rule, one module in memory at a time.

    Each module has a generator of its own, seeded by its name: what a tensor becomes depends neither on the order
    nor on which others are drawn.

    Args:
        skeleton: on meta, and back on meta afterwards.
        modules: the modules to draw; all by default.

    Yields:
        Name and float32 tensor on `device`.

    Raises:
        ModelError: transformers has no rule for a tensor.
    """
    for prefix, module in modules if modules is not None else skeleton.named_modules():
        own: dict[str, Any] = {**module._parameters, **module._buffers}
        if not any(tensor is not None for tensor in own.values()):
            continue
        module.to_empty(device=device, recurse=False)
        with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
            torch.manual_seed(_seed_for(seed, prefix))
            _initialise(skeleton, prefix, module)
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                yield f"{prefix}.{name}" if prefix else name, tensor.detach()
        module.to_empty(device="meta", recurse=False)


def _initialise(skeleton: PreTrainedModel, prefix: str, module: nn.Module) -> None:
    """transformers' rule for a module that has just got storage; some rules stand with the module's parent.

    Raises:
        ModelError: no rule gives one of its tensors a value.
    """
    own = [
        tensor
        for tensor in [*module._parameters.values(), *module._buffers.values()]
        if tensor is not None and tensor.is_floating_point()
    ]
    for tensor in own:
        tensor.detach().fill_(torch.nan)
    owner = prefix
    skeleton._init_weights(module)
    while any(tensor.isnan().any() for tensor in own):
        if not owner:
            raise ModelError(
                f"transformers has no rule to draw the weights of {prefix}",
                fix="Use model.weights: pretrained, or a model of another family.",
            )
        owner = owner.rpartition(".")[0]
        skeleton._init_weights(skeleton.get_submodule(owner))


def _seed_for(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def _owners(skeleton: PreTrainedModel, tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, nn.Module]]:
    names = sorted({name.rpartition(".")[0] for name, _ in tensors})
    return [(name, skeleton.get_submodule(name)) for name in names]
