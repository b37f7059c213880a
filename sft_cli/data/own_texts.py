"""All that a row says in its own words, in every form in which a template may write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def own_texts(value: Any) -> Iterator[str]:
    """Texts in nested lists and objects, keys included.

    Also what they hide: the texts of a list of parts in one piece, since a template joins them; and what a text is
    that holds JSON, since arguments of a tool call are parsed where a template wants an object.
    """
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
            waiting += _parsed(item)
        elif isinstance(item, list):
            waiting += item
            parts = [part["text"] for part in item if isinstance(part, dict) and isinstance(part.get("text"), str)]
            if len(parts) > 1:
                yield "".join(parts)
        elif isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()


def _parsed(text: str) -> list[Any]:
    """The value of a text that is JSON and holds escapes, which alone could hide something; else nothing."""
    if "\\" not in text or text.lstrip()[:1] not in ("{", "["):
        return []
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):  # no JSON, so nobody will parse it
        return []
