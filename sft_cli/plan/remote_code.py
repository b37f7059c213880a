"""Python code that comes with a model or tokenizer: `auto_map` in its configs, and who may run it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from sft_cli.errors import ModelError
from sft_cli.plan import hub
from sft_cli.plan.architecture import is_known
from sft_cli.plan.child_process import ask
from sft_cli.plan.local_model import CONFIG

TOKENIZER_CONFIG = "tokenizer_config.json"
TIMEOUT_SECONDS = 60
"""Importing transformers takes a few seconds; a dead network disk would take for ever."""

# In a process of its own, so that planning imports no transformers; and only for the few models that have an auto_map.
# Local classes go before the model's own where there is no trust, so what fails here fails for want of them.
_ASK_TRANSFORMERS = """
import sys
from transformers import AutoConfig, AutoTokenizer

kind, folder = sys.argv[1:]
auto = AutoConfig if kind == "config.json" else AutoTokenizer
try:
    auto.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
except Exception as error:
    print("needs code" if "trust_remote_code" in str(error) else "other")
"""


def require_trust(folder: Path, file: str, *, trusted: bool, where: str) -> None:
    """Refuses what transformers can't load without running code from the folder, unless the recipe trusts it.

    Args:
        folder: of a model or a tokenizer, on this disk.
        file: `config.json` for the model, `tokenizer_config.json` for the tokenizer.
        trusted: `model.trust_remote_code`.
        where: the place in the recipe, for errors.

    Raises:
        ModelError: code would have to run.
    """
    references = [] if trusted else _code_of(folder / file)
    if not references or not _needs_code(folder, file):
        return
    thing = "model" if file == CONFIG else "tokenizer"
    raise ModelError(
        f"this {thing} runs only with Python code that comes with it ({references[0]}), which transformers does not "
        "have, and model.trust_remote_code is false",
        where=where,
        fix=f"Read the code in {_place_of_code(folder)}, and write `trust_remote_code: true` under `model` if you "
        "trust it; or use a model whose code is in transformers.",
    )


def code_files(folder: Path) -> list[str]:
    """The Python files that a folder's configs name, in the folder itself."""
    return sorted({f"{name}.py" for owner, name in _modules(folder) if owner is None})


def code_repos(folder: Path) -> list[str]:
    """Other repositories of the hub whose code a folder's configs name."""
    return sorted({owner for owner, _ in _modules(folder) if owner is not None and hub.is_hub_id(owner)})


def _modules(folder: Path) -> set[tuple[str | None, str]]:
    modules = set()
    for file in (CONFIG, TOKENIZER_CONFIG):
        for reference in _code_of(folder / file):
            owner, dashes, name = reference.rpartition("--")
            modules.add((owner if dashes else None, name.rsplit(".", 1)[0].replace(".", "/")))
    return modules


def _place_of_code(folder: Path) -> str:
    return str(folder) if any(folder.glob("*.py")) else "its repository"


def _needs_code(folder: Path, file: str) -> bool:
    if file == CONFIG and is_known(json.loads((folder / CONFIG).read_text(encoding="utf-8"))):
        return False
    try:
        asked = ask(["-c", _ASK_TRANSFORMERS, file, str(folder)], limit_seconds=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"transformers did not say within {TIMEOUT_SECONDS} s whether it has the code for {file}",
            where=str(folder),
            fix="Try again where more of the processor and of the disk is free.",
        ) from error
    return asked.stdout.strip().endswith("needs code")


def _code_of(index: Path) -> list[str]:
    """References in an `auto_map`, such as `modeling_x.XForCausalLM` or `owner/repo--modeling_x.XForCausalLM`.

    Args:
        index: a config.json or tokenizer_config.json; one that is absent or no JSON object has none.
    """
    if not index.is_file():
        return []
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except ValueError:
        return []  # whoever needs what is in it says that it can't be read
    auto_map = content.get("auto_map") if isinstance(content, dict) else None
    values = auto_map.values() if isinstance(auto_map, dict) else auto_map if isinstance(auto_map, list) else ()
    return [reference for value in values for reference in _references(value)]


def _references(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))
