"""Which of a tokenizer's added tokens templates build turns of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import AddedToken

_CONTROL = re.compile(r"<\|[^|\s]+\|>")
"""How control tokens are written; some tokenizers add them without calling them special."""


def special_tokens(added: Mapping[int, AddedToken]) -> dict[int, str]:
    """By id, those that are called special or written like a control token. Tags around reasoning and tool calls are
    neither as a rule."""
    return {
        token_id: token.content
        for token_id, token in added.items()
        if token.special or _CONTROL.fullmatch(token.content)
    }
