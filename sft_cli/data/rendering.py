"""A chat as text, and where in it the assistant's turns are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sft_cli.data.turns import Span, group_spans


@dataclass(frozen=True)
class Rendering:
    """A chat as text, with the assistant's turns."""

    text: str
    spans: tuple[Span, ...]
    """Characters that the assistant writes, in order. With markers: what they enclose."""
    marked: bool
    """Whether the template has generation markers; without, each span is one turn."""
    trained: tuple[bool | None, ...] = ()
    """For each assistant turn what the row says of its supervision; empty where it says nothing."""
    prompt_turns: int = 0
    """How many of the first assistant turns belong to a prompt."""
    changed: tuple[str, ...] = ()
    """The ways in which the text says less than the row."""

    def turns(self, turn_tokens: Sequence[str]) -> list[list[Span]]:
        """The spans of each assistant turn."""
        return group_spans(self.text, self.spans, turn_tokens) if self.marked else [[span] for span in self.spans]

    def regions(self, turn_tokens: Sequence[str]) -> list[Span]:
        """Where each assistant turn stands. Markers need not enclose all of it: from its header's token to the next."""
        if not self.marked:
            return list(self.spans)
        turns = self.turns(turn_tokens)
        begun = [max([0, *(self.text.rfind(token, 0, pieces[0][0]) for token in turn_tokens)]) for pieces in turns]
        ended = [min(self._found_after(pieces[-1][1], turn_tokens), default=len(self.text)) for pieces in turns]
        return list(zip(begun, ended, strict=True))

    def _found_after(self, position: int, tokens: Sequence[str]) -> list[int]:
        found = [self.text.find(token, position) for token in tokens]
        return [place for place in found if place >= 0]
