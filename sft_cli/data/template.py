"""The chat template: one full rendering of each chat, with the places that the assistant writes.

Imports transformers; whoever imports this module does so only where tokens are not in the cache yet.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateRuntimeError, TemplateSyntaxError
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from sft_cli.data.adapt import Taken, adapt, find_taken
from sft_cli.data.formats import Chat, Message
from sft_cli.data.losses import find_losses, first_lost_call
from sft_cli.data.own_texts import own_texts
from sft_cli.data.raw import BadRow
from sft_cli.data.render_limits import CHARACTERS, MEMORY_BYTES, bounded_memory, bounded_time
from sft_cli.data.rendering import Rendering
from sft_cli.data.special_tokens import special_tokens
from sft_cli.data.turns import Span, Structure, Turns, UnknownTurns, learn_turns, probe, turn_tokens
from sft_cli.errors import DataError, ModelError

TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template raises: its own `raise_exception`, jinja's errors, and Python's when it adds a text to a null."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_WHERE = "model.chat_template"


class ChatRenderer:
    """Renders chats exactly as `tokenizer.apply_chat_template` does.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        template: Jinja text; None: the tokenizer's own.
        origin: where the template comes from, for messages.

    Raises:
        ModelError: there is no template, it can't be parsed, or (without generation markers) its assistant turns
            can't be told apart.
        DataError: it raises on the simplest chat, so on any row.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, template: str | None, origin: str) -> None:
        self._tokenizer = tokenizer
        self._origin = origin
        templates: Any = tokenizer.chat_template if template is None else template
        if not templates:
            raise ModelError(
                "the tokenizer has no chat template" if template is None else "the chat template is empty",
                where=f"{_WHERE} ({origin})",
                fix="Set model.chat_template to a file. (sftune's own ChatML is for tokenizers with the added tokens "
                "<|im_start|> and <|im_end|>.)",
            )
        named: dict[str, str] = templates if isinstance(templates, dict) else {"default": templates}
        if "default" not in named:
            raise ModelError(
                f"the tokenizer has several chat templates ({', '.join(named)}) and none is the default",
                where=f"{_WHERE} ({origin})",
                fix="Set model.chat_template to a file.",
            )
        self._plain = named["default"]
        self._with_tools = named.get("tool_use", self._plain)
        # transformers 5.24 drops null keys before it renders, 5.17 does not; the tokens must be those of either.
        nullish: list[Any] = [{"role": "user", "content": None}]
        seen = tokenizer.apply_chat_template(nullish, chat_template="{{ 'content' in messages[0] }}", tokenize=False)
        self._drops_nulls = seen == "False"
        with bounded_memory():
            structure = self._probe()
        special = special_tokens(tokenizer.added_tokens_decoder).values()
        self._turn_tokens = turn_tokens(structure, {*special, *tokenizer.all_special_tokens})
        self._turns = self._learn(structure)
        self._taken = {template: self._find_taken(template) for template in {self._plain, self._with_tools}}

    @property
    def turn_tokens(self) -> tuple[str, ...]:
        """Special tokens of the template's structure, which no text of a row may contain."""
        return self._turn_tokens

    def render(self, chat: Chat) -> Rendering:
        """Render one chat, in full.

        Raises:
            BadRow: the template raises or leaves a tool call out, the chat contains a turn token or a role that nobody
                knows, or its turns can't be told apart.
        """
        template = self._with_tools if chat.tools else self._plain
        self._refuse_turn_tokens(chat)
        self._refuse_roles(chat, template)
        messages = adapt(chat, self._taken[template])
        try:
            text, marked = self._render(template, messages, chat.tools)
        except TEMPLATE_ERRORS as error:
            raise BadRow(
                f"the chat template raises: {error}", fix=f"Change the row, or {_WHERE} ({self._origin})."
            ) from error
        roles = [message["role"] for message in messages]
        if self._turns is None or _has_markers(template):
            rendering = Rendering(text, tuple(marked), marked=True)
        else:
            rendering = Rendering(text, tuple(self._turns.find(text, roles.count("assistant"))), marked=False)
        regions = rendering.regions(self._turn_tokens)
        lost = first_lost_call(text, messages, regions)
        if lost is not None:
            fix = f"Name a template for tools under {_WHERE} (now {self._origin})."
            raise BadRow("a tool call that the chat template leaves out", f"the call of {lost}", fix)
        turns = rendering.turns(self._turn_tokens)
        trained = tuple(
            choice for role, choice in zip(roles, chat.trained, strict=bool(chat.trained)) if role == "assistant"
        )
        prompt_turns = roles[: chat.prompt_messages].count("assistant")
        if (trained or prompt_turns) and len(turns) != roles.count("assistant"):
            what = f"{roles.count('assistant')} assistant messages, but the template marks {len(turns)} turns"
            fix = "Remove `weight` and `train` from the row, or merge neighbouring assistant messages."
            raise BadRow("single turns can't be told apart", what, fix)
        pairs = zip(chat.messages, messages, strict=True)
        said = [own if own["role"] == "assistant" else given for own, given in pairs]
        changed = find_losses(text, said, chat.tools, regions)
        return replace(rendering, trained=trained, prompt_turns=prompt_turns, changed=changed)

    def _render(
        self, template: str, messages: list[Any], tools: list[Any] | None = None, *, prompt: bool = False
    ) -> tuple[str, list[Span]]:
        if self._drops_nulls:
            messages = [{key: value for key, value in message.items() if value is not None} for message in messages]
        special_tokens: dict[str, Any] = dict(self._tokenizer.special_tokens_map)
        try:
            with bounded_time():
                # In transformers' sandbox, as everywhere: a template is a program that came with a model.
                rendered: Any = render_jinja_template(
                    conversations=[messages],
                    tools=tools,
                    chat_template=template,
                    return_assistant_tokens_mask=_has_markers(template),
                    add_generation_prompt=prompt,
                    **special_tokens,
                )
        except MemoryError as error:
            raise TemplateRuntimeError(f"it takes more than {MEMORY_BYTES / 2**30:g} GiB of memory") from error
        texts, spans = rendered
        bound = CHARACTERS + 10 * sum(map(len, own_texts([messages, tools])))
        if len(texts[0]) > bound:
            raise TemplateRuntimeError(f"it writes {len(texts[0]):,} characters, and {bound:,} are more than enough")
        return texts[0], list(spans[0]) if spans else []

    def _probe(self) -> Structure:
        """Learn the structure; a template that wants a system message first gets one."""
        system = {"role": "system", "content": "Systempromptkq"}
        failure: Exception | None = None
        openings: tuple[list[Message], ...] = ([], [system])
        for opening in openings:

            def render(chat: list[dict[str, str]], prompt: bool, opening: list[Message] = opening) -> str:
                return self._render(self._plain, [*opening, *chat], prompt=prompt)[0]

            try:
                structure = probe(render)
            except TEMPLATE_ERRORS as error:
                failure = failure or error
            except UnknownTurns as error:
                failure = error
            else:
                self._opening = opening
                return structure
        # One that raises refuses every row; one that is no Jinja, or whose turns can't be seen, is not a template.
        is_refusal = not isinstance(failure, (TemplateSyntaxError, UnknownTurns))
        kind = DataError if is_refusal else ModelError
        raise kind(
            f"the chat template can't render a plain chat of two rounds: {failure}",
            where=f"{_WHERE} ({self._origin})",
            fix="Correct the template, or name another file under model.chat_template.",
        ) from failure

    def _learn(self, structure: Structure) -> Turns | None:
        """How to find turns; None where the template marks them itself."""
        if _has_markers(self._plain) and _has_markers(self._with_tools):
            return None
        try:
            return learn_turns(structure, [str(token) for token in self._tokenizer.added_tokens_decoder.values()])
        except UnknownTurns as error:
            raise ModelError(
                str(error),
                where=f"{_WHERE} ({self._origin})",
                fix="Put {% generation %} and {% endgeneration %} around what the assistant writes.",
            ) from error

    def _find_taken(self, template: str) -> Taken:
        def render(opening: list[Message], messages: list[Message]) -> str | None:
            try:
                return self._render(template, [*opening, *messages])[0]
            except TEMPLATE_ERRORS:
                return None  # what is asked: whether it raises

        with bounded_memory():
            return find_taken(lambda messages: render(self._opening, messages))

    def _refuse_roles(self, chat: Chat, template: str) -> None:
        """A role that the template does not name is written as a turn of nobody, or not at all."""
        for number, message in enumerate(chat.messages, start=1):
            role = message["role"]
            if role not in _ROLES and f'"{role}"' not in template and f"'{role}'" not in template:
                known = f"Known roles: {', '.join(sorted(_ROLES))}, and what {_WHERE} ({self._origin}) names."
                raise BadRow("unknown role", f"message {number} has the role {role!r}", known)

    def _refuse_turn_tokens(self, chat: Chat) -> None:
        for text in own_texts([chat.messages, chat.tools]):
            for token in self._turn_tokens:
                if token in text:
                    raise BadRow(
                        "a turn token in the text", f"the row's own text holds {token}", "Remove it from the row."
                    )


def read_template(path: str | None) -> str | None:
    """The text of `model.chat_template`; None where it is not set.

    Raises:
        ModelError: the file can't be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"the chat template can't be read: {error}", where=f"{_WHERE} ({path})", fix="Check the path."
        ) from error


def _has_markers(template: str) -> bool:
    return _GENERATION.search(template) is not None
