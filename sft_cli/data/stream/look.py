"""The first rows of a stream, before anything is started: what a missing file or a bad row costs seconds to find."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass

from sft_cli.data.chat import EncodedChat
from sft_cli.data.order import epoch_steps
from sft_cli.data.progress import short_name, show_progress
from sft_cli.data.report import SourceReport
from sft_cli.data.rows import TokenizedRows
from sft_cli.data.stream.rows import Stream
from sft_cli.data.stream.steps import join_rows
from sft_cli.data.tokenisation import refuse_empty
from sft_cli.plan.plan import Plan

FIRST_ROWS = 2048


@dataclass(frozen=True, eq=False)
class FirstRows:
    """What is left of about `FIRST_ROWS` rows of all sources, of more where none of these is left.

    In the proportion of the whole, each once whatever it weighs.
    """

    rows: TokenizedRows
    """Source after source, as without streaming."""
    reports: tuple[SourceReport, ...]
    """Of these rows."""
    is_whole: bool
    """Whether the stream has no more."""


def look(plan: Plan, *, progress: bool) -> FirstRows:
    """Tokenise the beginning of a plan's training data.

    Args:
        plan: with pinned sources and a tokenizer folder.
        progress: show how far it is, on stderr.

    Raises:
        DataError: a source is missing, empty or unreadable; one of the rows is bad; none of them can be learned from;
            these are all rows, and too few.
        ModelError: the tokenizer or the chat template can't be used.
    """
    stream = Stream(plan)
    sources = range(len(stream.sources))
    name = ", ".join(short_name(source.path) for source in stream.sources)
    chats: list[list[EncodedChat]] = [[] for _ in sources]
    read = dict.fromkeys(sources, 0.0)
    with ExitStack() as stack:
        blocks = [stack.enter_context(closing(stream.blocks(source, counted=True))) for source in sources]
        advance = stack.enter_context(show_progress(f"the beginning of {name}", shown=progress))
        # Each source is opened, however many there are.
        while read and (_rows_in(stream) < FIRST_ROWS or 0.0 in read.values() or not any(chats)):
            behind = min(read, key=read.__getitem__)
            block = next(blocks[behind], None)
            if block is None:
                del read[behind]
                continue
            found, share = block
            chats[behind] += found
            read[behind] = max(share, 1e-9)
            advance(rows := _rows_in(stream), min(1.0, rows / FIRST_ROWS))
    if not any(chats):
        refuse_empty(stream.reports)
    rows_read = join_rows([chat for found in chats for chat in found], [len(found) for found in chats])
    if not read:
        epoch_steps(rows_read, plan, 0)
    return FirstRows(rows_read, stream.reports, is_whole=not read)


def _rows_in(stream: Stream) -> int:
    return sum(report.rows_in for report in stream.reports)
