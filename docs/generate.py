"""Writes the pages that follow from the code: recipe.md, cli.md, errors.md, backends.md, resume.md and metrics.md.

`python docs/generate.py` writes them, `--check` fails where one is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from sft_cli.cli.app import app
from sft_cli.errors import BY_EXIT_CODE
from sft_cli.plan.backends import BACKENDS, Backend
from sft_cli.plan.resumption import RULES, MayChange
from sft_cli.recipe.keys import Key, keys, sections
from sft_cli.recipe.unbuilt import KEYS
from sft_cli.recipe.validate import shown_default
from sft_cli.telemetry.metric_fields import FIELDS, Field, Line

EMPTY = Parameter.empty
DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py (`make docs`); change the code instead. -->"

RECIPE_HEAD = """# The recipe

One YAML file says everything about a run. Only `model.path` and `data.train` are required. `sftune init` writes a
starter, `sftune schema` prints the JSON Schema for editors.

- **YAML** is version 1.2's core schema: `1e-5` is a number, only `true` and `false` are booleans, `off` is a word,
  dates are text. Duplicate keys are errors.
- **`extends: other.yaml`** lays this recipe over another one, which may extend a third: mappings are merged, lists and
  values replaced. The path is relative to the file that says it; `builtin:tiny` is the recipe that ships.
- **`--set section.key=value`** lays one more value over it; `data.train.0.path=x` reaches into a list, and
  `--set 'batching={tokens: 512}'` merges a section.
- **Paths** may use `~` and `$VAR` (`$$` is a dollar sign). Input paths are relative to the recipe's folder;
  `output_dir`, `data.cache_dir` and paths given with `--set` are relative to the working directory. A path is a hub id
  unless it exists, begins with `./`, `../`, `/` or `~`, or ends like a file (`.jsonl`, `.json`, `.csv`, `.parquet`,
  also `.gz` and `.zst`). Data may stand behind an address: `s3://bucket/chats/*.jsonl`, `gs://`, `hf://`.
- *Not yet* marks what this version refuses.
"""

ERRORS_HEAD = """# Exit codes

An error you can cause is one short block on stderr: what is wrong, where, and what to do. `--debug` adds the
traceback. A worker's failure is the command's failure: the first failing rank's error, once, with its rank.
"""

RESUME_HEAD = """# What may change when a run is resumed

`--resume` and `--resume-from` compare the plan with that in the checkpoint, every `auto` resolved. A key that may not
have changed ends the command with 2, with its old and its new value; one that is told is named, and the run goes on.
A section's rule is that of all its keys that have none of their own. [checkpoints.md](checkpoints.md) has the rest.

| key | may change | because |
|---|---|---|"""

METRICS_HEAD = """# metrics.jsonl

One JSON object a line, written by rank 0 and on disk as soon as the line is: `tail -f` it, or read it with pandas
(`pd.read_json(path, lines=True)`). A training step is a line with `step` and `loss` and without `event`; with
`telemetry.log_every_steps` above 1 a line stands for all steps since the one before. What is no finite number is null.
`gpu_` fields are of rank 0's GPU, found by its UUID, whatever `CUDA_VISIBLE_DEVICES` says; a thread samples it once a
second, and a line has all samples since the line before (or the last one again, where there is none). What a driver or
a GPU does not say is left out, and the run says so once at its start; a MIG slice has its whole GPU's sensors, and
neither utilization nor activity.

**How time is split.** `forward_seconds`, `backward_seconds` and `optimizer_seconds` are measured on the device: events
on the stream that computes, read when they are past, so that nobody waits for them. What communication and host keep
the device waiting is in the part in which it waits. `data_wait_seconds` is the host's, and may lie beside the device's
work: so the parts need not add up to `step_seconds`.

**What is told in words.** Rank 0 says it on the terminal once, and again when it has changed:
- a GPU that is too hot, braked for power, held below its highest clock by a setting, or limited to less power than
  its own; not the ordinary power cap. It is over when it was not seen for a minute;
- memory errors that ECC could not correct, and NVLink errors, since the run was started;
- a rank that computes 10% slower than the others: the forward of up to eight layers in the middle of the model, in the
  first micro-batch of each step, per slot. Inside a layer nobody waits for another rank, so this tells them apart,
  where a step takes all of them the same time. Medians of 20 steps are compared. It travels with the step's one
  collective.

All of that is of every rank's GPU. [trackers.md](trackers.md) says how the same numbers get elsewhere.
"""

CLI_HEAD = """# The command line

`sftune COMMAND [RECIPE] [--set section.key=value]...`, or `python -m sft_cli`. Without RECIPE: `sftune.yaml` in the
working directory, else the built-in tiny recipe. Every command also takes `-h`.
"""


def pages() -> dict[str, str]:
    """File name -> its text."""
    return {
        "recipe.md": recipe_page(),
        "cli.md": cli_page(),
        "errors.md": errors_page(),
        "backends.md": backends_page(),
        "resume.md": resume_page(),
        "metrics.md": metrics_page(),
    }


def recipe_page() -> str:
    """Every key with its values, default and one line."""
    parts = [NOTE, RECIPE_HEAD]
    for section in [*(path for path in sections() if path and path != ("data", "eval")), ()]:
        own = [key for key in keys().values() if key.path[:-1] == section]
        title = "Top level" if not section else f"`{'.'.join(section)}`"
        if section == ("data", "train"):
            title = "One item of `data.train` or `data.eval`"
        rows = "\n".join(_recipe_row(key) for key in own)
        parts.append(f"## {title}\n\n| key | values | default | |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _recipe_row(key: Key) -> str:
    default = "required" if key.field.is_required() else f"`{shown_default(key.field.get_default())}`"
    missing = _not_built(key)
    description = f"{key.field.description}. *Not yet: {missing}.*" if missing else key.field.description
    return f"| `{key.path[-1]}` | {key.wanted} | {default} | {description} |"


BACKENDS_HEAD = """# Kernel backends

Fastest first. `auto` takes the first that nothing hinders on this machine, and the plan says what kept the others away;
one that a recipe names and that can't run ends the command with 4 and its install line. The extra `gpu` of sftune
brings flash-linear-attention, TileLang, flash-qla and Liger-Kernel.

| slot | backend | | made for | installed by | taken by `auto` |
|---|---|---|---|---|---|"""


def _not_built(key: Key) -> str:
    """Which of a key's values this version refuses; empty where it takes all."""
    entry = next((entry for entry in KEYS if entry.key == key.dotted), None)
    if entry is None:
        return ""
    words = [word for word in key.words if not entry.is_built(word)]
    if words:
        return ", ".join(f"`{word}`" for word in words)
    return f"other than `{shown_default(key.field.get_default())}`"


def cli_page() -> str:
    """Every command with its arguments and options."""
    parts = [NOTE, CLI_HEAD]
    for command in app.registered_commands:
        function = command.callback
        assert function is not None
        hints = get_type_hints(function, include_extras=True)
        required = {name for name, parameter in signature(function).parameters.items() if parameter.default is EMPTY}
        rows = "\n".join(_parameter_row(hint, name in required) for name, hint in hints.items() if name != "return")
        name = command.name or function.__name__.replace("_", "-")
        parts.append(f"## sftune {name}\n\n{function.__doc__}\n\n| | |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def _parameter_row(hint: Any, is_required: bool) -> str:
    """Annotated[type, typer.Option("--json", help=...)] as a row of the table."""
    info = next(item for item in hint.__metadata__ if isinstance(item, ArgumentInfo | OptionInfo))
    if isinstance(info, ArgumentInfo):
        return f"| `{info.metavar if is_required else f'[{info.metavar}]'}` | {info.help} |"
    metavar = f" {info.metavar}" if info.metavar else ""
    # Inside Annotated, Typer keeps the first name where a default would stand.
    name = next(name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str))
    return f"| `{name}{metavar}` | {info.help} |"


def backends_page() -> str:
    """Every backend of every kernel slot."""
    rows = [
        _backend_row(slot if at == 0 else "", backend)
        for slot, backends in BACKENDS.items()
        for at, backend in enumerate(backends)
    ]
    return "\n".join([NOTE, BACKENDS_HEAD, *rows, ""])


def _backend_row(slot: str, backend: Backend) -> str:
    install = "" if backend.package is None else f"`{backend.package.install}`"
    automatic = "" if backend.is_automatic else "no"
    return f"| {slot} | `{backend.name}` | {backend.because} | {backend.made_for} | {install} | {automatic} |"


def resume_page() -> str:
    """Every key that has a rule of its own for resuming."""
    words = {MayChange.FREELY: "freely", MayChange.TOLD: "yes, and it is told", MayChange.NEVER: "no"}
    rows = [f"| `{rule.key}` | {words[rule.may_change]} | {rule.because} |" for rule in RULES]
    return "\n".join([NOTE, RESUME_HEAD, *rows, ""])


def metrics_page() -> str:
    """Every field of metrics.jsonl."""
    parts = [NOTE, METRICS_HEAD]
    for line in Line:
        rows = "\n".join(_field_row(field) for field in FIELDS if field.line is line)
        title = line.value[0].upper() + line.value[1:]
        parts.append(f"## {title}\n\n| field | unit | | |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _field_row(field: Field) -> str:
    return f"| `{field.name}` | {field.unit} | {field.meaning} | {field.when.value} |"


def errors_page() -> str:
    """Every exit code with its meaning."""
    rows = ["| code | meaning |", "|---|---|", *(f"| {code} | {meaning} |" for code, meaning in _exit_codes())]
    return "\n".join([NOTE, ERRORS_HEAD, *rows, ""])


def _exit_codes() -> Iterator[tuple[int, str]]:
    yield 0, "Done."
    yield 1, "Anything else, a bug of sftune's included."
    for code, error in sorted(BY_EXIT_CODE.items()):
        if code > 1:
            kinds = [error, *error.__subclasses__()]
            yield code, " ".join((kind.__doc__ or "").strip() for kind in kinds)
    yield 130, "Stopped by SIGINT (Ctrl-C), after a checkpoint was written (none with `checkpoint.enabled: false`)."
    yield 143, "Stopped by SIGTERM or SIGUSR1, after a checkpoint was written (as above)."


def main() -> None:
    """Writes the pages, or with --check compares them."""
    stale = [name for name, text in pages().items() if not _is_current(DOCS / name, text)]
    if "--check" not in sys.argv:
        for name in stale:
            (DOCS / name).write_text(pages()[name], encoding="utf-8")
        print(f"wrote {', '.join(stale)}" if stale else "all pages are up to date")
    elif stale:
        sys.exit(f"out of date: {', '.join(stale)}; run `make docs`")


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    main()
