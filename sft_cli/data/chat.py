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

    from sft_cli.data.formats import Chat
    from sft_cli.data.rendering import Rendering
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
        supervise: see `supervised_flags`.
        turn_tokens: what tells two turns apart.
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
        chats.append(EncodedChat(token_ids, supervised_flags(rendering, encoding.offsets, supervise, turn_tokens)))
    return chats


def check_chat(chat: Chat, supervise: Supervise) -> None:
    """Raises BadRow where there is nobody to learn from: no assistant turn, unless every token is supervised."""
    roles = [message["role"] for message in chat.messages]
    if supervise != "all" and "assistant" not in roles:
        what = f"its roles are {', '.join(dict.fromkeys(roles))}, so no token would be supervised"
        raise BadRow("no assistant turn", what, "Add the assistant's answer, or set data.supervise to all.")


def check_text(rendering: Rendering) -> None:
    """Raises BadRow where the text can't be encoded, or not as it is: half of a surrogate pair, which JSON can write,
    and NUL, at which tools written in C end a text."""
    text = rendering.text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        where = f"{error.reason} at character {error.start} of the rendered row, after {_before(text, error.start)}"
        raise BadRow("text that is not Unicode", where, "Remove the lone half of a surrogate pair.") from error
    if "\0" in text:
        where = f"character {text.index(chr(0))} of the rendered row, after {_before(text, text.index(chr(0)))}"
        raise BadRow("a NUL character in the text", where, "Remove it.")


def _before(text: str, position: int) -> str:
    """What stands before a character, so that one can look for it."""
    return ascii(text[max(0, position - 20) : position])


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


def supervised_flags(
    rendering: Rendering, offsets: Sequence[tuple[int, int]], supervise: Supervise, turn_tokens: Sequence[str]
) -> NDArray[np.uint8]:
    """(tokens,) uint8, 0 or 1, by the recipe's rule and by what the row says of single turns.

    Args:
        rendering: a text with the assistant's spans.
        offsets: characters [start, end) of each token.
        supervise: `assistant` all spans but those of a prompt's turns, `last_assistant` those of the last turn, `all`
            every token.
        turn_tokens: what tells two turns apart.
    """
    if supervise == "assistant" and not rendering.trained and not rendering.prompt_turns:
        return supervised_tokens(offsets, rendering.spans)
    turns = rendering.turns(turn_tokens)
    trained = rendering.trained or (None,) * len(turns)
    if supervise == "all":
        supervised = np.ones(len(offsets), dtype=np.uint8)
        unwanted = [span for turn, choice in zip(turns, trained, strict=True) if choice is False for span in turn]
        supervised[supervised_tokens(offsets, unwanted) == 1] = 0
        return supervised
    first = len(turns) - 1 if supervise == "last_assistant" else rendering.prompt_turns
    wanted = [index >= first if choice is None else choice for index, choice in enumerate(trained)]
    spans = [span for turn, choice in zip(turns, wanted, strict=True) if choice for span in turn]
    return supervised_tokens(offsets, spans)
