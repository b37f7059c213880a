"""The model a recipe names: its config and where its files are, before any weight is read."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

from sft_cli.errors import ModelError
from sft_cli.plan import hub, local_model, shapes
from sft_cli.plan.config_facts import facts_from_config
from sft_cli.plan.plan import ModelFacts
from sft_cli.recipe.places import Places
from sft_cli.recipe.schema import ModelSection

BUILTIN_TOKENIZERS = Path(__file__).parent.parent / "data" / "builtin"
"""Holds a folder for each builtin model that comes with a tokenizer."""

NAME_A_TOKENIZER = "Set model.tokenizer to a folder that has one, or a hub id."


def find_model(model: ModelSection, places: Places | None = None, *, download: bool = False) -> ModelFacts:
    """What is known of the model: from a shipped shape, a local folder, or the hub.

    Args:
        model: the recipe's section; a local path is absolute.
        places: where the recipe's keys stand, for errors.
        download: fetch config, tokenizer and weights of a hub model that the cache lacks. Without it the network
            is not touched, and a hub model whose shape ships is planned from that.

    Raises:
        ModelError: not found, no access, an unsupported architecture, or weights missing.
    """
    where = places.of("model.path") if places else "model.path"
    if model.path.startswith(shapes.PREFIX):
        config = _builtin_config(model.path, where)
        return facts_from_config(config, None, "random", "this shape ships with sftune; its weights are random", where)
    folder = Path(model.path)
    if folder.suffix == ".json" and folder.is_file():
        return _config_facts(folder, model.weights, where)
    if folder.is_absolute() or folder.is_dir():
        return _local_facts(folder.absolute(), model.weights, where)
    if hub.is_hub_id(model.path):
        return _hub_facts(model, where, download)
    raise ModelError(
        f"{model.path} is neither a hub id nor a folder: {folder.absolute()} is not there",
        where=where,
        fix=_suggestion(model.path) or "Give a hub id, a model folder or a builtin: name.",
    )


def find_tokenizer(model: ModelSection, places: Places | None = None, *, download: bool = False) -> str | None:
    """The local folder with the tokenizer of `model.tokenizer`, or of `model.path` where that is null.

    None only without `download`: a hub tokenizer that isn't in the cache, or a builtin model that has none.

    Raises:
        ModelError: a folder that isn't there or has no tokenizer; with `download`, anything not found.
    """
    key = "model.path" if model.tokenizer is None else "model.tokenizer"
    where = places.of(key) if places else key
    path = model.tokenizer or model.path
    if path.startswith(shapes.PREFIX):
        return _builtin_tokenizer(path, where, download)
    folder = Path(path)
    if folder.is_absolute() or folder.is_dir():
        if not local_model.has_tokenizer(folder):
            what = "has no tokenizer" if folder.is_dir() else "is not there"
            raise ModelError(f"{folder} {what}", where=where, fix=NAME_A_TOKENIZER)
        return str(folder.absolute())
    if not hub.is_hub_id(path):
        raise ModelError(
            f"{path} is neither a hub id nor a folder: {folder.absolute()} is not there",
            where=where,
            fix=NAME_A_TOKENIZER,
        )
    # A tokenizer of its own has its own history: model.revision is the model's.
    revision = model.revision if model.tokenizer is None else None
    cached = hub.cached_folder(path, revision, local_model.TOKENIZER_FILES)
    if cached is None and download:
        cached = hub.download(path, revision, hub.TOKENIZER_PATTERNS, where)
    return str(cached) if cached else None


def _builtin_config(path: str, where: str) -> dict[str, Any]:
    name = path.removeprefix(shapes.PREFIX)
    if name not in shapes.names():
        known = ", ".join(shapes.PREFIX + name for name in shapes.names())
        fix = _suggestion(path) or f"There are: {known}."
        raise ModelError(f"no model {path} ships with sftune", where=where, fix=fix)
    return shapes.read_shape(name)


def _local_facts(folder: Path, weights: Literal["pretrained", "random"], where: str) -> ModelFacts:
    config = local_model.read_config(folder, where)
    facts = facts_from_config(config, folder, weights, f"read from {folder / local_model.CONFIG}", where)
    if weights == "pretrained":
        local_model.require_weights(folder, where)
    return facts


def _config_facts(path: Path, weights: Literal["pretrained", "random"], where: str) -> ModelFacts:
    if weights == "pretrained":
        raise ModelError(
            f"{path} is a config without weights",
            where=where,
            fix="Give the model's folder, or use model.weights: random to train from the config alone.",
        )
    return facts_from_config(local_model.read_config_file(path, where), None, weights, f"read from {path}", where)


def _hub_facts(model: ModelSection, where: str, download: bool) -> ModelFacts:
    """From the cache; from the shipped shape where that is enough; else from a download."""
    cached = hub.cached_folder(model.path, model.revision, [local_model.CONFIG])
    if cached is not None and (model.weights == "random" or local_model.has_weights(cached)):
        config = local_model.read_config(cached, where)
        return facts_from_config(config, cached, model.weights, "in the local hub cache", where)
    shape = shapes.SHAPE_OF_HUB_ID.get(model.path)
    if not download or (model.weights == "random" and shape is not None):
        if cached is not None:
            config = local_model.read_config(cached, where)
            return facts_from_config(config, None, model.weights, "config.json in the local hub cache, weights not yet", where)
        if shape is not None:
            because = f"the shape that ships as {shapes.PREFIX}{shape}; nothing of it is in the local hub cache"
            return facts_from_config(shapes.read_shape(shape), None, model.weights, because, where)
    if not download:
        raise ModelError(
            f"{model.path} is not in the local hub cache, and its shape does not ship with sftune",
            where=where,
            fix=_suggestion(model.path) or f"Download it with `hf download {model.path}`, or give a local folder.",
        )
    return _downloaded_facts(model, where)


def _downloaded_facts(model: ModelSection, where: str) -> ModelFacts:
    try:
        # Config and tokenizer first: an unsupported model is refused before gigabytes of it arrive.
        folder = hub.download(model.path, model.revision, hub.TOKENIZER_PATTERNS, where)
    except ModelError as error:
        suggestion = _suggestion(model.path)
        if suggestion is None:
            raise
        raise ModelError(error.what, where=error.where, fix=f"{suggestion} {error.fix}") from error
    facts = facts_from_config(local_model.read_config(folder, where), folder, model.weights, "from the Hugging Face hub", where)
    if model.weights == "pretrained":
        hub.download(model.path, model.revision, hub.WEIGHT_PATTERNS, where)
        local_model.require_weights(folder, where)
    return facts


def _builtin_tokenizer(path: str, where: str, required: bool) -> str | None:
    folder = BUILTIN_TOKENIZERS / path.removeprefix(shapes.PREFIX)
    if local_model.has_tokenizer(folder):
        return str(folder)
    if required:
        raise ModelError(f"{path} comes without a tokenizer", where=where, fix=NAME_A_TOKENIZER)
    return None


def _suggestion(path: str) -> str | None:
    """A shipped name close to a path; None where there is none, or where the path is one."""
    known = [*shapes.SHAPE_OF_HUB_ID, *(shapes.PREFIX + name for name in shapes.names())]
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(path.lower(), by_lower, n=1, cutoff=0.85)
    if not close or by_lower[close[0]] == path:
        return None
    return f"Did you mean {by_lower[close[0]]}?"
