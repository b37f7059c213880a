"""A trained model as a Hugging Face folder: names, shapes and dtypes of the source, config and tokenizer beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import DTYPES, INDEX, SafetensorsFolder
from sft_cli.model.tensor_names import TensorNames

SHARD_BYTES = 4 * 2**30
"""About how large one safetensors file becomes, and how much of the model rank 0 holds at a time."""

_BESIDE_CONFIG = (
    "generation_config.json",
    # Of a vision-language model: how its whole takes images.
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


def export(
    target: Path,
    model: LanguageModel,
    config: dict[str, Any],
    *,
    source: SafetensorsFolder | None,
    tokenizer_folder: Path,
    chat_template: str | None,
    code_folder: Path | None = None,
) -> None:
    """Writes `target`, replacing an older export at once when the new one is whole. Called on every rank.

    Args:
        config: config.json of the source.
        source: the weights that training started from; None where they were random. Its tensors that were not
            trained (`mtp.*`, a vision tower) are carried over.
        tokenizer_folder: where the tokenizer's files are.
        code_folder: the source, where its own code builds the model; the code goes along.
        chat_template: text of the template that was trained with, where the recipe named one.
    """
    unfinished = target.with_name(f".{target.name}.unfinished")
    is_first = dist.get_rank() == 0
    if is_first:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    _write_weights(unfinished, _tensors(model, config, source), is_first=is_first)
    if is_first:
        _write_config(unfinished, config, source)
        if code_folder is not None:
            _copy_code(unfinished, code_folder)
        _copy_tokenizer(unfinished, tokenizer_folder, chat_template)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(unfinished, target)
    dist.barrier()


def _tensors(
    model: LanguageModel, config: dict[str, Any], source: SafetensorsFolder | None
) -> Iterator[tuple[str, Tensor]]:
    """Whole tensors, one parameter at a time; gathering one is a collective. Only rank 0's have content."""
    default = getattr(torch, str(config.get("dtype") or config.get("torch_dtype") or "float32"))
    names = TensorNames(model.family, source)
    trained = set()
    for parameter_name, parameter in model.transformers_named_parameters():
        location = names.locate(parameter_name)
        for name, tensor in location.split(_whole(parameter)):
            trained.add(name)
            yield name, tensor.to(DTYPES[source.dtype(name)] if source is not None else default)
    for name in source.names() if source is not None else ():
        if name == names.head and model.tied:
            # A source may store a tied head too; the old one beside the new embedding would untie them on loading.
            # A copy, because safetensors refuses two names of one storage.
            yield name, _whole(model.embedding.weight).to(DTYPES[source.dtype(name)]).clone()
        elif name not in trained and dist.get_rank() == 0:
            yield name, source.rows(name, slice(None))


def _whole(parameter: Tensor) -> Tensor:
    """All of a parameter, in the dtype that it is trained in, on the CPU of rank 0; the others keep none of it."""
    whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return whole.detach().to("cpu" if dist.get_rank() == 0 else "meta")


def _write_weights(folder: Path, tensors: Iterator[tuple[str, Tensor]], *, is_first: bool) -> None:
    shard: dict[str, Tensor] = {}
    shards: list[list[str]] = []
    total_bytes = shard_bytes = 0
    for name, tensor in tensors:
        if not is_first:
            continue
        if shard and shard_bytes + tensor.nbytes > SHARD_BYTES:
            shards.append(_write_shard(folder, len(shards), shard))
            shard, shard_bytes = {}, 0
        shard[name] = tensor.contiguous()
        shard_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    if is_first:
        shards.append(_write_shard(folder, len(shards), shard))
        _name_shards(folder, shards, total_bytes)


def _write_shard(folder: Path, number: int, shard: dict[str, Tensor]) -> list[str]:
    path = folder / f"{number}.safetensors"
    try:
        save_file(shard, path, metadata={"format": "pt"})
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        # What the system said, as Python says it elsewhere: a full disk must not look like a bug.
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error
    return list(shard)


def _name_shards(folder: Path, shards: list[list[str]], total_bytes: int) -> None:
    """The names that transformers looks for; how many shards there are is known only at the end."""
    if len(shards) == 1:
        (folder / "0.safetensors").rename(folder / "model.safetensors")
        return
    weight_map = {}
    for number, names in enumerate(shards):
        file_name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"{number}.safetensors").rename(folder / file_name)
        weight_map |= dict.fromkeys(names, file_name)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_config(folder: Path, config: dict[str, Any], source: SafetensorsFolder | None) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _BESIDE_CONFIG:
        if source is not None and (source.path / name).is_file():
            shutil.copyfile(source.path / name, folder / name)


def _copy_tokenizer(folder: Path, tokenizer_folder: Path, chat_template: str | None) -> None:
    for name in _TOKENIZER_FILES:
        if (tokenizer_folder / name).is_file():
            shutil.copyfile(tokenizer_folder / name, folder / name)
    description = tokenizer_folder / "tokenizer_config.json"
    if description.is_file() and "auto_map" in json.loads(description.read_text(encoding="utf-8")):
        _copy_code(folder, tokenizer_folder)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def _copy_code(folder: Path, source: Path) -> None:
    """Python files beside the configs that name them; transformers looks for them nowhere else."""
    for file in sorted(source.glob("*.py")):
        shutil.copyfile(file, folder / file.name)
