"""A trained model as a Hugging Face folder: names, shapes and dtypes of the source, config and tokenizer beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sft_cli.model.language_model import LanguageModel, transformers_name
from sft_cli.model.model_files import write_config, write_tokenizer
from sft_cli.model.replaced_folder import replacing
from sft_cli.model.safetensors_folder import DTYPES, SafetensorsFolder
from sft_cli.model.safetensors_writer import Entry, SafetensorsWriter
from sft_cli.model.tensor_names import TensorNames
from sft_cli.plan.disk import require_room
from sft_cli.plan.model_types import stored_dtype

Whole = Callable[[str, nn.Parameter, torch.dtype], Tensor]
"""(a parameter's name in the model, the parameter, dtype) -> all of it in that dtype, on the CPU of the rank that
writes; every rank calls it for the same parameters in the same order."""

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def gathered(name: str, parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    """All of a parameter of a model that is spread over ranks; ranks other than 0 keep none of it."""
    part = parameter.detach().to(dtype)  # before it is sent: mostly half as much
    whole = part.full_tensor() if isinstance(part, DTensor) else part
    return whole.to("cpu" if _is_first() else "meta")


def export(
    target: Path,
    model: LanguageModel,
    config: dict[str, Any],
    *,
    source: SafetensorsFolder | None,
    tokenizer_folder: Path,
    chat_template: str | None,
    code_folder: Path | None = None,
    whole: Whole = gathered,
) -> None:
    """Writes `target`, replacing an older export at once when the new one is whole. Called on every rank.

    One parameter is in memory whole at a time, on each device and on the host of rank 0.

    Args:
        model: what is written; on meta where `whole` knows its weights.
        config: config.json of the source.
        source: the weights that training started from; None where they were random. Its tensors that were not
            trained (`mtp.*`, a vision tower) are carried over.
        tokenizer_folder: where the tokenizer's files are.
        code_folder: the source, where its own code builds the model; the code goes along.
        chat_template: text of the template that was trained with, where the recipe named one.
        whole: where the weights come from.

    Raises:
        CheckpointError: the disk has no room for it, or would not take it; an earlier export is whole.
        ModelError: the source has no such tensors (any more).
    """
    names = TensorNames(model.family, source)
    trained = _trained_entries(model, names, config, source)
    carried = _carried_entries(trained, source)
    if _is_first():
        entries = [*(entry for group in trained.values() for entry in group), *carried]
        with replacing(target) as folder:
            require_room(  # now that what a crash left of an earlier one is gone
                target,
                {"export": sum(entry.size_bytes for entry in entries)},
                fix="Free disk space; then `sftune export CHECKPOINT DIR` writes the model from a checkpoint.",
            )
            writer = SafetensorsWriter(folder, entries)
            _write_trained(writer, model, names, trained, whole)
            for entry in carried:
                assert source is not None
                writer.write(entry.name, source.pieces(entry.name))
            writer.close()
            write_config(folder, config, source.path if source is not None else None, code_folder)
            write_tokenizer(folder, tokenizer_folder, chat_template)
    else:
        _write_trained(None, model, names, trained, whole)
    if dist.is_initialized():
        dist.barrier()


def _trained_entries(
    model: LanguageModel, names: TensorNames, config: dict[str, Any], source: SafetensorsFolder | None
) -> dict[str, list[Entry]]:
    """By the parameter's name in the model: the tensors that it becomes."""
    default = stored_dtype(config)
    entries = {}
    for name, parameter in model.named_parameters():
        location = names.locate(transformers_name(name))
        shape, tensors = tuple(location.part_shape(parameter.shape)), location.names(parameter.shape)
        if source is None:
            dtype: torch.dtype = getattr(torch, default)
            size = torch.Size(shape).numel() * dtype.itemsize
            entries[name] = [Entry(tensor, _DTYPE_NAMES[dtype], shape, size) for tensor in tensors]
            continue
        location.require(source, parameter.shape)
        if parameter is model.embedding.weight and model.tied and names.head in source:
            # A source may store a tied head too; the old one beside the new embedding would untie them on loading.
            tensors.append(names.head)
        entries[name] = [Entry.like(tensor, source.stored(tensor)) for tensor in tensors]
    return entries


def _carried_entries(trained: dict[str, list[Entry]], source: SafetensorsFolder | None) -> list[Entry]:
    taken = {entry.name for group in trained.values() for entry in group}
    names = source.names() if source is not None else []
    return [Entry.like(name, source.stored(name)) for name in names if source is not None and name not in taken]


def _write_trained(
    writer: SafetensorsWriter | None,
    model: LanguageModel,
    names: TensorNames,
    trained: dict[str, list[Entry]],
    whole: Whole,
) -> None:
    """Args:
    writer: None on ranks that only take part in gathering.
    """
    for name, parameter in model.named_parameters():
        entries = trained[name]
        dtypes = {DTYPES[entry.dtype] for entry in entries}
        tensor = whole(name, parameter, dtypes.pop() if len(dtypes) == 1 else parameter.dtype)
        if writer is not None:
            _write_parts(writer, names.locate(transformers_name(name)).split(tensor), entries)
        del tensor  # before the next one is gathered


def _write_parts(writer: SafetensorsWriter, parts: list[Tensor], entries: list[Entry]) -> None:
    """A parameter in one tensor, in several (experts), or in two that are the same (a tied head)."""
    parts += parts * (len(entries) - len(parts))
    for entry, part in zip(entries, parts, strict=True):
        writer.write(entry.name, [_bytes(part.to(DTYPES[entry.dtype]))])


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0
