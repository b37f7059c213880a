"""The model a recipe names: its config and where its files are, before any weight is read."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from sft_cli.errors import ModelError
from sft_cli.plan import hub, local_model, remote_code, shapes
from sft_cli.plan.config_facts import facts_from_config
from sft_cli.plan.generic_probe import probe_model
from sft_cli.plan.hub_files import description_files, require_safetensors, weight_files
from sft_cli.plan.hub_refusals import not_at_hand
from sft_cli.plan.model_types import GENERIC
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
        download: fetch config and tokenizer of a hub model that the cache lacks; the weights wait for
            `fetch_weights`. Without it the network is not touched, and a hub model whose shape ships is planned
            from that.

    Raises:
        ModelError: not found, no access, an unsupported architecture, weights missing or pickled, or code that the
            recipe doesn't trust.
    """
    where = places.of("model.path") if places else "model.path"
    if model.path.startswith(shapes.PREFIX):
        config = _builtin_config(model.path, where)
        return facts_from_config(config, None, "random", "this shape ships with sftune; its weights are random", where)
    folder = Path(model.path)
    if folder.suffix == ".json" and folder.is_file():
        return _config_facts(folder, model.weights, where)
    if folder.is_absolute() or folder.is_dir():
        _require_trust(folder.absolute(), local_model.CONFIG, model, where)
        return _local_facts(folder.absolute(), model, where)
    if hub.is_hub_id(model.path):
        return _hub_facts(model, where, download)
    raise ModelError(
        f"{model.path} is neither a hub id nor a folder: {folder.absolute()} is not there",
        where=where,
        fix=_suggestion(model.path) or "Give a hub id, a model folder or a builtin: name.",
    )


def fetch_weights(
    model: ModelSection, facts: ModelFacts, places: Places | None = None, *, progress: bool = False
) -> None:
    """Downloads the weights of a hub model that the cache lacks: the last thing before a run, as it takes longest.

    Args:
        facts: what `find_model` found.
        places: where the recipe's keys stand, for errors.
        progress: say on stderr that a download begins.

    Raises:
        ModelError: access is refused, the connection breaks, or the download is not all that its index names.
        OSError: the disk takes no more.
    """
    if facts.weights == "random" or facts.folder is None or Path(model.path).is_absolute():
        return
    folder, where = Path(facts.folder), places.of("model.path") if places else "model.path"
    missing = weight_files(folder)
    if missing and hub.is_hub_id(model.path):
        if progress:
            print(f"downloading the weights of {model.path}", file=sys.stderr, flush=True)
        # The snapshot's folder is named by its commit: a branch may have moved on since the config came.
        revision = folder.name if hub.is_commit(folder.name) else model.revision
        hub.download(hub.Repo("model", model.path, revision, where), missing)
        local_model.require_weights(folder, where)
        if facts.family == GENERIC:  # so far only its config has been seen
            probe_model(facts.config, code_folder=facts.code_path, weights_folder=folder, where=where)


def find_tokenizer(model: ModelSection, places: Places | None = None, *, download: bool = False) -> str | None:
    """The local folder with the tokenizer of `model.tokenizer`, or of `model.path` where that is null.

    None only without `download`: a hub tokenizer that isn't in the cache, or a builtin model that has none.

    Raises:
        ModelError: a folder that isn't there or has no tokenizer, or code that the recipe doesn't trust; with
            `download`, anything not found.
    """
    key = "model.path" if model.tokenizer is None else "model.tokenizer"
    where = places.of(key) if places else key
    path = model.tokenizer or model.path
    if path.startswith(shapes.PREFIX):
        return _builtin_tokenizer(path, where, download)
    folder: Path | None = Path(path).absolute()
    if not Path(path).is_absolute() and not Path(path).is_dir():
        if not hub.is_hub_id(path):
            raise ModelError(
                f"{path} is neither a hub id nor a folder: {folder} is not there", where=where, fix=NAME_A_TOKENIZER
            )
        # A tokenizer of its own has its own history: model.revision is the model's.
        repo = hub.Repo("model", path, model.revision if model.tokenizer is None else None, where)
        folder = _hub_tokenizer(repo, trusted=model.trust_remote_code, download=download)
    if folder is None:
        return None
    if not local_model.has_tokenizer(folder):
        what = "has no tokenizer" if folder.is_dir() else "is not there"
        raise ModelError(f"{folder} {what}", where=where, fix=NAME_A_TOKENIZER)
    _require_trust(folder, remote_code.TOKENIZER_CONFIG, model, where)
    return str(folder)


def _require_trust(folder: Path, file: str, model: ModelSection, where: str) -> None:
    remote_code.require_trust(folder, file, trusted=model.trust_remote_code, where=where)


def _trusted(folder: Path, model: ModelSection) -> Path | None:
    return folder if model.trust_remote_code else None


def _builtin_config(path: str, where: str) -> dict[str, Any]:
    name = path.removeprefix(shapes.PREFIX)
    if name not in shapes.names():
        known = ", ".join(shapes.PREFIX + name for name in shapes.names())
        fix = _suggestion(path) or f"There are: {known}."
        raise ModelError(f"no model {path} ships with sftune", where=where, fix=fix)
    return shapes.read_shape(name)


def _local_facts(folder: Path, model: ModelSection, where: str) -> ModelFacts:
    config = local_model.read_config(folder, where)
    because = f"read from {folder / local_model.CONFIG}"
    facts = facts_from_config(config, folder, model.weights, because, where, _trusted(folder, model))
    if model.weights == "pretrained":
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
    repo = hub.Repo("model", model.path, model.revision, where)
    cached = _cached(repo, [local_model.CONFIG], trusted=model.trust_remote_code)
    if cached is not None:
        _require_trust(cached, local_model.CONFIG, model, where)
    if cached is not None and (model.weights == "random" or local_model.has_weights(cached)):
        config = local_model.read_config(cached, where)
        return facts_from_config(
            config, cached, model.weights, "in the local hub cache", where, _trusted(cached, model)
        )
    shape = shapes.SHAPE_OF_HUB_ID.get(model.path)
    if not download or (model.weights == "random" and shape is not None):
        if cached is not None:
            config = local_model.read_config(cached, where)
            because = "config.json in the local hub cache, weights not yet"
            return facts_from_config(config, None, model.weights, because, where, _trusted(cached, model))
        if shape is not None:
            because = f"the shape that ships as {shapes.PREFIX}{shape}; nothing of it is in the local hub cache"
            return facts_from_config(shapes.read_shape(shape), None, model.weights, because, where)
    if not download:
        raise ModelError(
            f"{model.path} is not in the local hub cache, and its shape does not ship with sftune",
            where=where,
            fix=_suggestion(model.path) or f"Download it with `hf download {model.path}`, or give a local folder.",
        )
    return _downloaded_facts(repo, model)


def _downloaded_facts(repo: hub.Repo, model: ModelSection) -> ModelFacts:
    """Config and tokenizer alone: an unsupported model is refused before gigabytes of it arrive."""
    try:
        folder = _download_description(
            repo, trusted=model.trust_remote_code, needs_weights=model.weights == "pretrained"
        )
    except ModelError as error:
        suggestion = _suggestion(model.path)
        if suggestion is None:
            raise
        raise ModelError(error.what, where=error.where, fix=f"{suggestion} {error.fix}") from error
    _require_trust(folder, local_model.CONFIG, model, repo.where)
    config = local_model.read_config(folder, repo.where)
    because = "from the Hugging Face hub"
    return facts_from_config(config, folder, model.weights, because, repo.where, _trusted(folder, model))


def _download_description(repo: hub.Repo, *, trusted: bool, needs_weights: bool) -> Path:
    listing = _listing(repo)
    if needs_weights:
        require_safetensors(repo, listing)
    files = description_files(listing, code=trusted)
    if not files:
        raise ModelError(
            f"{repo.id} holds neither a config nor a tokenizer",
            where=repo.where,
            fix="Use a model that transformers can load, or give model.path a local folder.",
        )
    folder = hub.download(repo, files)
    if trusted:
        for other in remote_code.code_repos(folder):
            repo_of_code = hub.Repo("model", other, None, repo.where)
            hub.download(repo_of_code, description_files(_listing(repo_of_code), code=True))
    return folder


def _listing(repo: hub.Repo) -> hub.Listing:
    try:
        return hub.look_up(repo)
    except hub.Unreachable as reason:
        partly = hub.cached_folder(repo, [local_model.CONFIG]) is not None
        raise not_at_hand(reason, repo.kind, repo.id, repo.where, partly=partly) from reason


def _hub_tokenizer(repo: hub.Repo, *, trusted: bool, download: bool) -> Path | None:
    cached = _cached(repo, local_model.TOKENIZER_FILES, trusted=trusted)
    if cached is not None or not download:
        return cached
    return _download_description(repo, trusted=trusted, needs_weights=False)


def _cached(repo: hub.Repo, files: Sequence[str], *, trusted: bool) -> Path | None:
    """The cached snapshot; None where it lacks the code that is to run."""
    folder = hub.cached_folder(repo, files)
    if folder is None or not trusted or all((folder / file).is_file() for file in remote_code.code_files(folder)):
        return folder
    return None


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
