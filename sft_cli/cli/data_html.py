"""`sftune data --html`: one page that needs nothing else, no network, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from sft_cli.cli.data_view import DataView, Sample
from sft_cli.cli.data_words import (
    BATCHING_HEADINGS,
    LEGEND,
    SOURCE_HEADINGS,
    THIS,
    batching_cells,
    batching_title,
    in_one_line,
    length_words,
    overview,
    percent,
    sample_words,
    source_cells,
    source_remarks,
)
from sft_cli.cli.visible import visible
from sft_cli.data.pieces import Piece
from sft_cli.data.summary import Batching, Bin
from sft_cli.telemetry.html_page import html_page
from sft_cli.telemetry.html_parts import card, figures, table

_MARK = "\n<!-- sftune data -->"
MARK = f"<!doctype html>{_MARK}\n"
"""How a page begins: such a file may be written over."""

_STYLE = Path(__file__).with_name("data_page.css")
_WIDTH, _HEIGHT, _BELOW = 960, 220, 34
_LABELS = 12


def page(view: DataView) -> str:
    """The whole page as text; everything that comes from data or recipe is escaped."""
    return html_page(
        visible(f"{view.origin}: data"),
        _STYLE,
        [
            "<h1>The data as the model will see it</h1>",
            f'<p class="quiet">{_safe(overview(view))}</p>',
            _figures(view),
            card("Sources", _sources(view)),
            card("Tokens a row", [f'<p class="quiet">{_safe(length_words(view))}</p>', _histogram(view.bins)]),
            card(
                "Padding against packing",
                [f'<p class="quiet">{_safe(batching_title(view))}</p>', _batching(view.batching)],
            ),
            *_rows(view),
        ],
        mark=_MARK,
    )


def _figures(view: DataView) -> str:
    own = next(way for way in view.batching if way.is_recipes)
    told = (
        ("rows", f"{view.rows:,}"),
        ("tokens", f"{view.lengths.total:,}"),
        ("supervised", percent(view.supervised_tokens / view.lengths.total)),
        ("real share of slots", percent(own.real_share)),
        ("steps an epoch", "-" if own.steps is None else f"{own.steps:,}"),
    )
    return figures(told)


def _sources(view: DataView) -> Iterator[str]:
    yield table(in_one_line(SOURCE_HEADINGS), (map(_safe, cells) for cells in source_cells(view)), numbers_from=3)
    yield "<ul>"
    for name, remark in source_remarks(view):
        yield f'<li class="{remark.kind}"><span class="quiet">{_safe(name)}:</span> {_safe(remark.text)}</li>'
    yield "</ul>"


def _batching(ways: Sequence[Batching]) -> str:
    def cells(way: Batching) -> Iterator[str]:
        mode, order, share, *others = batching_cells(way)
        bar = f'<span class="bar"><i style="width:{100 * way.real_share:.1f}%"></i></span>'
        yield from (mode, order, f"{share} {bar}", *others, THIS if way.is_recipes else "")

    own = next(at for at, way in enumerate(ways) if way.is_recipes)
    return table((*in_one_line(BATCHING_HEADINGS), ""), map(cells, ways), numbers_from=2, own=own)


def _histogram(bins: Sequence[Bin]) -> str:
    most = max(bin_.rows for bin_ in bins)
    step = _WIDTH / len(bins)
    every = -(-len(bins) // _LABELS)
    parts = [f'<line x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>']
    for at, bin_ in enumerate(bins):
        height = bin_.rows / most * (_HEIGHT - 20)
        left = at * step
        parts.append(
            f'<rect x="{left + 1:.1f}" y="{_HEIGHT - height:.1f}" width="{step - 2:.1f}" height="{height:.1f}" rx="2">'
            f"<title>{bin_.low:,} to {bin_.high:,} tokens: {bin_.rows:,} rows</title></rect>"
        )
        if at % every == 0:
            parts.append(f'<text x="{left + 1:.1f}" y="{_HEIGHT + 16}">{bin_.low:,}</text>')
    parts.append(f'<text x="{_WIDTH}" y="{_HEIGHT + 30}" text-anchor="end">tokens, up to {bins[-1].high:,}</text>')
    box = f"0 0 {_WIDTH} {_HEIGHT + _BELOW}"
    return f'<svg viewBox="{box}" role="img" aria-label="How many rows have how many tokens">{"".join(parts)}</svg>'


def _rows(view: DataView) -> Iterator[str]:
    samples = [*([view.row] if view.row is not None else []), *view.samples]
    if samples:
        yield f'<p class="quiet" style="margin-top:2rem">Supervised tokens are green: {LEGEND}. Point at a row to see '
        yield "where its tokens begin, at a token for its id.</p>"
    for sample in samples:
        yield card(visible(sample_words(sample)), [_text(sample)])


def _text(sample: Sample) -> str:
    # The line break after <pre> is dropped by browsers, one of the row's own would be.
    return "<pre>\n" + "".join(map(_piece, sample.pieces)) + "</pre>"


def _piece(piece: Piece) -> str:
    kinds = " ".join(name for name, holds in (("s", piece.supervised), ("x", piece.special)) if holds)
    ids = ", ".join(map(str, piece.token_ids))
    marks = f' class="{kinds}"' if kinds else ""
    return f'<span{marks} title="{ids}">{_safe(piece.text)}</span>'


def _safe(text: str) -> str:
    return escape(visible(text))
