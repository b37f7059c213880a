"""PyYAML's complaints in the words of someone who writes a recipe."""

from __future__ import annotations

import yaml

from sft_cli.errors import RecipeError


def syntax_error(error: yaml.YAMLError, text: str, name: str) -> RecipeError:
    """The RecipeError for text that is not YAML.

    Args:
        error: what PyYAML raised.
        text: what it was reading.
        name: what errors call the text: `recipe.yaml`.
    """
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return RecipeError(
            f"the character U+{ord(text[error.position]):04X} can't stand in YAML",
            where=f"{name}:{line}",
            fix="Remove it, or write it as an escape in quotes.",
        )
    if not isinstance(error, yaml.MarkedYAMLError):
        raise error
    line = min(_line_to_correct(error), text.rstrip().count("\n") + 1)  # not past the end, where PyYAML gave up
    what, fix = _explain(error, _line(text, line))
    return RecipeError(what, where=f"{name}:{line}", fix=fix)


def _line_to_correct(error: yaml.MarkedYAMLError) -> int:
    # A key without its `:` and a quote are noticed lines below where they stand.
    begins_there = error.context in ("while scanning a simple key", "while scanning a quoted scalar")
    mark = error.context_mark if begins_there else error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def _line(text: str, line: int) -> str:
    lines = text.split("\n")
    return lines[line - 1] if line <= len(lines) else ""


def _explain(error: yaml.MarkedYAMLError, line: str) -> tuple[str, str]:
    problem = error.problem or "not YAML"
    if "'\\t'" in problem:
        return "tabs can't indent YAML", "Use spaces."
    if "another document" in problem:
        return "a second document starts here; a recipe is one", "Remove the `---`."
    if problem == "nested too deeply":
        return problem, "A recipe has sections and keys, no more."
    if "undefined alias" in problem:
        return problem, "Define it first with `&name`, or put the text in quotes."
    if "mapping values are not allowed" in problem:
        fix = "Put text that contains `: ` in quotes; line up the keys of a section."
        return "a second `:` in one line, or a line indented too far", fix
    if "could not find expected ':'" in problem:
        return "a key without its `:`", "Write `key: value`, with a space after the `:`."
    if "cannot start any token" in problem:
        return f"a value can't start with the character that stands here: {line.strip()[:40]}", "Put it in quotes."
    if error.context and "while scanning a quoted scalar" in error.context:
        return "a quoted text that never ends", "Close it with the same quote."
    if error.context and "flow" in error.context:
        return f"a bracket that is not closed: {problem}", "Close every [ and {, and put a comma between items."
    if "expected <block end>" in problem:
        return "this line is indented unlike its neighbours", "Line up the keys of a section."
    return problem, "Correct the YAML here."
