"""Where the assistant's turns are in a rendered chat, for templates without generation markers.

A template is rendered once on a made-up conversation. From that we learn how it opens an assistant's turn (the role
header) and how it ends one (the terminator). Both are then looked up in the full rendering of each row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sft_cli.data.raw import BadRow

Render = Callable[[list[dict[str, str]], bool], str]
"""(messages, add_generation_prompt) -> text."""

Span = tuple[int, int]
"""Characters [start, end) of a rendered chat."""

_USERS = ("Firstquestionkq", "Secondquestionkq")
_ANSWERS = ("Firstanswerkq", "Secondanswerkq")

_THINK_TAG = re.compile(r"<\|?/?(?:seed:)?think(?:ing)?\|?>|\[/?THINK\]|<\|(?:START|END)_THINKING\|>", re.IGNORECASE)
"""Tags around reasoning. The model writes them, so they belong to a turn's text and never to its header."""


class UnknownTurns(Exception):
    """The template's assistant turns can't be told from the rest."""


@dataclass(frozen=True)
class Structure:
    """What a template writes around the contents of messages."""

    before_answers: tuple[str, str]
    """From the end of the user's text to the assistant's, without think blocks; twice."""
    after_answers: tuple[str, str]
    """From the end of the assistant's text to the next user's; from there to the end of the chat."""
    generation_prompt: str
    """What `add_generation_prompt` adds, cut before a think block; empty where it adds nothing."""
    text: str
    """All of it, contents cut out."""


@dataclass(frozen=True)
class Turns:
    """How to find the assistant's turns in a rendering."""

    header: str
    """Stands before each assistant turn and nowhere else; a span starts at its end."""
    terminators: tuple[str, ...]
    """Special tokens; a span goes through the first of them. Empty where the template has none."""
    opener: str
    """With terminators: the added token that opens the turn after an assistant's, which no span reaches."""
    boundary: str
    """Without terminators: the first thing after an assistant turn that is not the last."""
    tail: str
    """Without terminators: what follows the last assistant turn's text."""
    kept: int
    """Without terminators: how many characters of `boundary` and `tail` are common and so belong to the turn."""

    def find(self, text: str, turns: int) -> list[Span]:
        """Spans of all assistant turns of a rendered chat, in order.

        Args:
            text: the rendering.
            turns: assistant messages in the row.

        Raises:
            BadRow: the rendering has another number of assistant turns, or one without an end.
        """
        starts = [match.end() for match in re.finditer(re.escape(self.header), text)]
        if len(starts) == turns + 1 and not text[starts[-1] :].strip():
            # What closes a user's turn may be the header ([/INST]); a chat that ends with the user ends with one more.
            starts.pop()
        if len(starts) != turns:
            raise BadRow(
                "assistant turns can't be told apart",
                f"{turns} assistant messages, but the rendering has {len(starts)} times {self.header!r}",
                "Merge neighbouring assistant messages, or put {% generation %} markers into model.chat_template.",
            )
        if not starts:
            return []
        limits = [start - len(self.header) for start in starts[1:]] + [len(text)]
        return [
            (start, self._end(text, start, limit, last=index == turns - 1))
            for index, (start, limit) in enumerate(zip(starts, limits, strict=True))
        ]

    def _end(self, text: str, start: int, limit: int, *, last: bool) -> int:
        if self.terminators:
            if self.opener and self.opener in text[start:limit]:
                limit = text.index(self.opener, start)
            ends = [text.find(token, start, limit) for token in self.terminators]
            found = [end + len(token) for end, token in zip(ends, self.terminators, strict=True) if end >= 0]
            end = min(found, default=-1)
        else:
            position = text.find(self.boundary, start) if self.boundary else -1
            if position < 0 and last and text.endswith(self.tail):
                position = len(text) - len(self.tail)
            end = position + self.kept if position >= 0 else -1
        if not start <= end <= limit + self.kept:
            raise BadRow("an assistant turn without an end", f"after character {start} of the rendering")
        return end


def probe(render: Render) -> Structure:
    """Render a made-up conversation and cut the contents out.

    Raises:
        UnknownTurns: the rendering does not show each message once and in order.
        Exception: whatever `render` raises on the conversation.
    """
    chat = [
        {"role": "user", "content": _USERS[0]},
        {"role": "assistant", "content": _ANSWERS[0]},
        {"role": "user", "content": _USERS[1]},
        {"role": "assistant", "content": _ANSWERS[1]},
    ]
    text = render(chat, False)
    pieces = re.split("|".join((_USERS[0], _ANSWERS[0], _USERS[1], _ANSWERS[1])), text)
    if re.findall("|".join(_USERS + _ANSWERS), text) != [_USERS[0], _ANSWERS[0], _USERS[1], _ANSWERS[1]]:
        raise UnknownTurns("it does not write each message once and in order")
    prompted, plain = render(chat[:1], True), render(chat[:1], False)
    generation_prompt = prompted[len(plain) :] if prompted.startswith(plain) else ""
    return Structure(
        before_answers=(_without_think(pieces[1]), _without_think(pieces[3])),
        after_answers=(pieces[2], pieces[4]),
        generation_prompt=_without_think(generation_prompt),
        text="".join([*pieces, generation_prompt]),
    )


def learn_turns(structure: Structure, added_tokens: Collection[str]) -> Turns:
    """Learn header and terminator from a template's structure.

    The header is the longest start of the generation prompt that also stands before both answers; where there is no
    prompt, what the texts before both answers end in alike. The terminator is the first added token after an answer;
    where one of the two answers has none, what follows both alike.

    Args:
        structure: from `probe`.
        added_tokens: the tokenizer's added tokens, as text.

    Raises:
        UnknownTurns: no header is found that stands before assistant turns only.
    """
    header = _learn_header(structure)
    between, tail = structure.after_answers
    first, last = (_first_token(text, added_tokens) for text in structure.after_answers)
    end = len(between) if first is None else first[0] + len(first[1])
    if first is not None and last is not None:
        opener = _first_token(between[end:], added_tokens)
        return Turns(header, (first[1], last[1]), opener[1] if opener else "", "", "", 0)
    boundary = between[:end]
    return Turns(header, (), "", boundary, tail, len(_common_start(boundary, tail)))


def group_spans(text: str, spans: Sequence[Span], turn_tokens: Sequence[str]) -> list[list[Span]]:
    """The spans of each turn: markers may enclose one turn in several pieces, with no turn token between them.

    Args:
        text: the rendering.
        spans: in order.
        turn_tokens: what tells two turns apart.
    """
    groups: list[list[Span]] = []
    begun = 0
    for start, end in spans:
        if groups and not any(token in text[begun:start] for token in turn_tokens):
            groups[-1].append((start, end))
        else:
            groups.append([(start, end)])
        begun = start
    return groups


def turn_tokens(structure: Structure, special_tokens: Collection[str]) -> tuple[str, ...]:
    """The special tokens that a template's structure is made of, think tags excepted: no row may contain them."""
    return tuple(
        sorted(token for token in special_tokens if token in structure.text and not _THINK_TAG.fullmatch(token))
    )


def _learn_header(structure: Structure) -> str:
    first, second = structure.before_answers
    prompt = structure.generation_prompt
    candidates = [prompt[:length] for length in range(len(prompt), 0, -1)]
    candidates = [candidate for candidate in candidates if candidate in first and candidate in second]
    # A space before an answer is part of the answer's first token, so it does not belong to the header.
    common_end = _common_start(first[::-1], second[::-1])[::-1].rstrip(" ")
    for header in [*candidates[:1], common_end]:
        if header.strip() and structure.text.count(header) - prompt.count(header) == 2:
            return header
    raise UnknownTurns("the chat template writes nothing before assistant turns that it does not write elsewhere")


def _without_think(text: str) -> str:
    tag = _THINK_TAG.search(text)
    return text[: tag.start()] if tag else text


def _first_token(text: str, tokens: Collection[str]) -> tuple[int, str] | None:
    """Position and text of the token that comes first; of two at one position the longer."""
    found = [(text.find(token), -len(token), token) for token in tokens if token and token in text]
    if not found:
        return None
    position, _, token = min(found)
    return position, token


def _common_start(left: str, right: str) -> str:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return left[:length]
