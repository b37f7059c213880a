"""Token ids back to text, piece by piece, so that one sees where tokens begin and which of them are supervised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNFINISHED = "\ufffd"
_MOST_TOKENS_OF_A_CHARACTER = 8
"""No character takes more tokens than its bytes, an accent or joiner added; past this it is a byte that is broken."""


@dataclass(frozen=True)
class Piece:
    """The fewest tokens that are text by themselves: one, or those of one character."""

    text: str
    token_ids: tuple[int, ...]
    supervised: bool
    special: bool


class Decoder:
    """A tokenizer as far as reading tokens goes. Of transformers, whose import takes seconds, nothing is needed.

    Args:
        tokenizer: as `tokenizers` has it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """What a chat template builds turns of. Tags around reasoning and tool calls are not special as a rule."""

    def text(self, token_ids: Sequence[int]) -> str:
        """All of it as text, special tokens too."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """One token's name; of an id that the tokenizer lacks, the number."""
        return self._tokenizer.id_to_token(token_id) or f"<token {token_id}>"

    def is_blank(self, token_id: int) -> bool:
        """Whether a token is white space alone."""
        return self._tokenizer.id_to_token(token_id) is not None and not self.text([token_id]).strip()

    def pieces(self, token_ids: Sequence[int], supervised: Sequence[int]) -> list[Piece]:
        """The pieces of a row; together they are its text.

        Args:
            token_ids: of the row.
            supervised: 0 or 1 a token. The first token of a row is never a target, whatever it says here.
        """
        return [
            Piece(
                text or self._names(token_ids[start:end]),
                tuple(token_ids[start:end]),
                any(supervised[max(start, 1) : end]),
                token_ids[start] in self.special_ids,
            )
            for start, end, text in split_text(token_ids, self.text)
        ]

    def _names(self, token_ids: Sequence[int]) -> str:
        """Of tokens that decode to nothing, the names of those that the tokenizer lacks."""
        return "".join(self.token(token) for token in token_ids if self._tokenizer.id_to_token(token) is None)


def open_decoder(folder: str, *, trust_remote_code: bool) -> Decoder:
    """The decoder of a tokenizer that rows have been tokenised with.

    Raises:
        ModelError: it can't be loaded.
    """
    file = Path(folder) / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        return Decoder(Tokenizer.from_file(str(file)))
    from sft_cli.data.tokenizer import load_tokenizer

    return Decoder(load_tokenizer(folder, trust_remote_code=trust_remote_code).backend_tokenizer)


def split_text(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[int, int, str]]:
    """(start, end, text) of each piece, in order.

    Each is decoded behind the one before it: at the beginning of a text many tokenizers drop a space.
    """
    context, start, before = 0, 0, ""
    for end in range(1, len(token_ids) + 1):
        text = decode(token_ids[context:end])
        unfinished = text.endswith(_UNFINISHED) and end - start < _MOST_TOKENS_OF_A_CHARACTER
        if unfinished and end < len(token_ids):
            continue
        yield start, end, text[len(before) :]
        context, start = start, end
        before = decode(token_ids[context:end])
