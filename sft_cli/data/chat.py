"""Chats to tokens and supervised flags, from one full rendering of each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sft_cli.data.raw import BadRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sft_cli.data.template import Rendering
    from sft_cli.data.turns import Span

Supervise = Literal["assistant", "last_assistant", "all"]


@dataclass(frozen=True, eq=False)
class EncodedChat:
    """One tokenised chat."""

    token_ids: NDArray[np.uint32]
    """(tokens,) uint32."""
    supervised: NDArray[np.uint8]
    """(tokens,) uint8, 0 or 1."""

    def cut(self, length: int) -> EncodedChat:
        """The first `length` tokens."""
        return EncodedChat(self.token_ids[:length], self.supervised[:length])

    @property
    def targets(self) -> int:
        """Supervised tokens that can be learned from: the first token of a row is never predicted."""
        return int(self.supervised[1:].sum())


def encode(
    tokenizer: PreTrainedTokenizerFast,
    renderings: Sequence[Rendering],
    supervise: Supervise,
    turn_tokens: Sequence[str],
) -> list[EncodedChat]:
    """Tokenise rendered chats in one call, which uses all cores.

    Args:
        tokenizer: a fast tokenizer.
        renderings: texts with the assistant's spans.
        supervise: `assistant` all spans, `last_assistant` those of the last turn, `all` every token.
        turn_tokens: what tells two turns apart, for `last_assistant`.
    """
    if not renderings:
        return []
    batch = tokenizer(
        [rendering.text for rendering in renderings],
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    chats: list[EncodedChat] = []
    for rendering, ids, encoding in zip(renderings, batch["input_ids"], batch.encodings, strict=True):
        token_ids = np.array(ids, dtype=np.uint32)
        if supervise == "all":
            supervised = np.ones(len(token_ids), dtype=np.uint8)
        else:
            spans = rendering.spans if supervise == "assistant" else last_turn(rendering, turn_tokens)
            supervised = supervised_tokens(encoding.offsets, spans)
        chats.append(EncodedChat(token_ids, supervised))
    return chats


def check_text(rendering: Rendering) -> None:
    """Raises BadRow where the text can't be encoded: JSON can write half of a surrogate pair."""
    try:
        rendering.text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRow("text that is not Unicode", f"{error.reason} at character {error.start}") from error


def supervised_tokens(offsets: Sequence[tuple[int, int]], spans: Sequence[Span]) -> NDArray[np.uint8]:
    """(tokens,) uint8: 1 for each token that overlaps a span.

    Args:
        offsets: characters [start, end) of each token, in order. Tokens of one emoji share theirs.
        spans: characters [start, end), in order.
    """
    supervised = np.zeros(len(offsets), dtype=np.uint8)
    for start, end in spans:
        if start < end:
            first = bisect_right(offsets, start, key=itemgetter(1))
            last = bisect_left(offsets, end, key=itemgetter(0))
            supervised[first:last] = 1
    return supervised


def last_turn(rendering: Rendering, turn_tokens: Sequence[str]) -> list[Span]:
    """The spans of the last assistant turn: markers may enclose one turn in several pieces."""
    if not rendering.marked:
        return list(rendering.spans[-1:])
    last: list[Span] = []
    for start, end in reversed(rendering.spans):
        if last and any(token in rendering.text[end : last[-1][0]] for token in turn_tokens):
            break
        if last and any(token in rendering.text[start:end] for token in turn_tokens):
            break
        last.append((start, end))
    return last[::-1]
