"""Tools and calls to them, as rows write them: objects, or JSON text of objects."""

from __future__ import annotations

from typing import Any

from sft_cli.data.formats.chat import kind_of
from sft_cli.data.json_text import parse_json
from sft_cli.data.raw import BadRow

Tool = dict[str, Any]


def read_tools(row: dict[str, Any], *, wrap: bool) -> list[Tool] | None:
    """The row's tools, JSON text parsed; `wrap` puts bare functions into {"type": "function", ...}.

    Raises:
        BadRow: they are not a list of objects.
    """
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = parse_json(tools) if tools.strip() else None
        except (ValueError, RecursionError) as error:
            raise BadRow("tools are not JSON", str(error), "Correct the text under `tools`.") from error
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRow("tools are not a list of functions", fix="Write a list of objects under `tools`.")
    if not wrap:
        return tools
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def read_calls_text(value: str, number: int) -> list[Tool]:
    """Calls that are JSON text, {"name": ..., "arguments": {...}} or a list of such, as OpenAI writes them.

    Args:
        value: the text.
        number: the message's place in the row, from 1.

    Raises:
        BadRow: it is not JSON, or a call has no name.
    """
    try:
        calls = parse_json(value)
    except (ValueError, RecursionError) as error:
        raise BadRow("a function call that is not JSON", f"turn {number}: {error}", "Correct the call.") from error
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise BadRow("a function call without a name", f"turn {number}", 'Write {"name": ..., "arguments": {...}}.')
    functions = [{"name": call["name"], "arguments": call.get("arguments", {})} for call in calls]
    return [checked_call({"type": "function", "function": function}, number) for function in functions]


def checked_call(call: Any, number: int) -> Tool:
    """A call of a message, found sound and left as it is.

    Raises:
        BadRow: it has no name, or arguments that are neither an object nor JSON text of one.
    """
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        fix = 'Write {"function": {"name": ..., "arguments": {...}}}.'
        raise BadRow("a function call without a name", f"message {number}", fix)
    parsed_arguments(function.get("arguments"), function["name"], number)
    assert isinstance(call, dict)
    return call


def parsed_arguments(arguments: Any, name: str, number: int) -> dict[str, Any]:
    """A call's arguments as an object; null and an empty text mean none.

    Raises:
        BadRow: they are something else, or text that is not JSON.
    """
    where = f"message {number}, the call of {name}"
    fix = "Write the arguments as an object, or as JSON text of one."
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise BadRow("tool call arguments that are not JSON", f"{where}: {error}", fix) from error
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise BadRow("tool call arguments that are not an object", f"{where}: {kind_of(arguments)}", fix)
    return arguments
