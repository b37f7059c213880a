"""A chart over the steps: curves as SVG that stretches, and text as HTML beside it, legible at any width."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from sft_cli.telemetry.fields import Field, number_text
from sft_cli.telemetry.html_parts import table
from sft_cli.telemetry.report.axis import Axis, steps_axis, tick_texts, values_axis
from sft_cli.telemetry.report.metrics import Series
from sft_cli.telemetry.report.thinning import thinned

_WIDTH, _HEIGHT = 1000, 200
_STEP_TICKS = 5
_MOST_DOTS = 40
"""A curve of no more points has a dot at each: of a single one there would be nothing to see."""
_TABLE_ROWS = 10
_LONGEST_UNIT = 5
_FARTHEST_REFERENCE = 3.0
"""A reference line that is this many times the largest value would make all flat."""


@dataclass(frozen=True)
class Curve:
    name: str
    series: Series
    style: str
    """A class of page.css: `c0` to `c5`, or `faint`."""


@dataclass(frozen=True)
class Mark:
    """A step at which something happened."""

    step: int
    what: str
    style: str


@dataclass(frozen=True)
class Reference:
    """A value to compare with, as the plan's estimate."""

    value: float
    what: str


@dataclass(frozen=True)
class Chart:
    name: str
    """Letters and dashes, once a page."""
    field: Field
    """Of all its curves."""
    curves: Sequence[Curve]
    """At least one, none empty."""
    marks: Sequence[Mark] = ()
    references: Sequence[Reference] = ()
    note: str = ""
    is_wide: bool = False

    def html(self, first_step: int, last_step: int) -> str:
        """The whole figure.

        Args:
            first_step: the axis below it begins there, as those of all charts of a page.
        """
        below, beside = steps_axis(first_step, last_step), self._values_axis()
        scale = " · logarithmic" if beside.is_logarithmic else ""
        unit = f' <span class="quiet">{escape(self.field.shown_unit)}{scale}</span>'
        return "".join(
            [
                f'<figure class="chart{" wide" if self.is_wide else ""}" id="{self.name}">',
                f'<figcaption id="{self.name}-title">{escape(self.field.title)}{unit}</figcaption>',
                self._legend(),
                *self._plot(below, beside),
                f'<p class="quiet">{escape(self._words())}</p>',
                self._table(),
                "</figure>",
            ]
        )

    def _values_axis(self) -> Axis:
        values = [value for curve in self.curves for value in curve.series.values]
        highest = max(values)
        near = [one.value for one in self.references if highest / _FARTHEST_REFERENCE <= one.value]
        near = [value for value in near if value <= highest * _FARTHEST_REFERENCE]
        field = self.field
        return values_axis([*values, *near], from_zero=field.from_zero, may_be_logarithmic=field.may_be_logarithmic)

    def _legend(self) -> str:
        if len(self.curves) == 1:
            return ""
        names = "".join(f'<span><i class="{curve.style}"></i>{escape(curve.name)}</span>' for curve in self.curves)
        return f'<p class="legend">{names}</p>'

    def _plot(self, below: Axis, beside: Axis) -> Iterator[str]:
        ticks = beside.ticks()
        steps = [tick for tick in below.ticks(_STEP_TICKS) if tick == round(tick)]
        suffix = "%" if self.field.shown_unit == "%" else ""
        yield f'<div class="plot" data-first="{below.low:.0f}" data-last="{below.high:.0f}">'
        yield '<div class="y" aria-hidden="true">'
        for tick, text in zip(ticks, tick_texts(ticks, self.field.scale, suffix), strict=True):
            yield f'<span style="top:{100 - 100 * beside.place(tick):.2f}%">{text}</span>'
        for one in self.references:
            if beside.low <= one.value <= beside.high:
                top = 100 - 100 * beside.place(one.value)
                yield f'<em style="top:{top:.2f}%">{escape(one.what)} {escape(self.field.text(one.value))}</em>'
        yield f'</div><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        yield f'aria-labelledby="{self.name}-title">'
        for tick in ticks:
            yield _across(beside, tick, "grid")
        for one in self.references:
            if beside.low <= one.value <= beside.high:
                yield _across(beside, one.value, "reference")
        for mark in self.marks:
            x = _WIDTH * below.place(mark.step)
            yield f'<line class="mark {mark.style}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT}">'
            yield f"<title>{escape(mark.what)}</title></line>"
        for curve in self.curves:
            yield from self._curve(curve, below, beside)
        yield '</svg><div class="x" aria-hidden="true">'
        for tick in steps:
            yield f'<span style="left:{100 * below.place(tick):.2f}%">{tick:,.0f}</span>'
        yield "</div></div>"

    def _curve(self, curve: Curve, below: Axis, beside: Axis) -> Iterator[str]:
        points = thinned(curve.series.steps, curve.series.values)
        places = [
            f"{_WIDTH * below.place(step):.1f},{_HEIGHT * (1 - beside.place(value)):.1f}" for step, value in points
        ]
        read_out = (
            f'data-name="{escape(curve.name)}" data-unit="{escape(self._brief_field().suffix)}" '
            f'data-x="{" ".join(f"{step:.0f}" for step, _ in points)}" '
            f'data-y="{" ".join(f"{value * self.field.scale:.5g}" for _, value in points)}"'
        )
        yield f'<polyline class="{curve.style}" points="{" ".join(places)}" {read_out}/>'
        if len(points) <= _MOST_DOTS:
            yield f'<path class="dots {curve.style}" d="{"".join(f"M{place}h0" for place in places)}"/>'

    def _words(self) -> str:
        """What one reads off the first curve, for those who don't see it; and the note."""
        curve, field = self.curves[0], self._brief_field()
        steps, values = curve.series.steps, curve.series.values
        lowest, highest = min(values), max(values)
        if lowest == highest:
            return f"{field.text(lowest)} throughout"
        parts = [f"last {field.text(values[-1])}"]
        parts.append(f"lowest {field.text(lowest)} at step {steps[values.index(lowest)]:,}")
        parts.append(f"highest {field.text(highest)} at step {steps[values.index(highest)]:,}")
        which = f"{curve.name}: " if len(self.curves) > 1 else ""
        return which + " · ".join([*parts, *([self.note] if self.note else [])])

    def _brief_field(self) -> Field:
        """A unit of several words stands beside the title alone."""
        return self.field if len(self.field.unit) <= _LONGEST_UNIT else replace(self.field, unit="")

    def _table(self) -> str:
        """A few steps in numbers; of each curve its value at that step, or the last before it."""
        steps = _spread(self.curves[0].series.steps)
        unit = f", {self.field.shown_unit}" if self.field.shown_unit else ""
        headings = ["step", *(escape(f"{curve.name}{unit}") for curve in self.curves)]
        rows = []
        for step in steps:
            values = [_value_at(curve.series, step) for curve in self.curves]
            rows.append(
                [f"{step:,}", *("-" if value is None else number_text(value * self.field.scale) for value in values)]
            )
        return f"<details><summary>in numbers</summary>{table(headings, rows, numbers_from=0)}</details>"


def _spread(steps: Sequence[int]) -> list[int]:
    """Some of them, as far from each other as can be; the first and the last among them."""
    if len(steps) <= _TABLE_ROWS:
        return list(steps)
    return [steps[round(at * (len(steps) - 1) / (_TABLE_ROWS - 1))] for at in range(_TABLE_ROWS)]


def _value_at(series: Series, step: int) -> float | None:
    at = bisect_right(series.steps, step)
    return series.values[at - 1] if at else None


def _across(axis: Axis, value: float, style: str) -> str:
    y = _HEIGHT * (1 - axis.place(value))
    return f'<line class="{style}" x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
