"""Writes an image of two runs' losses: `python docs/loss_curves.py LOSSES.jsonl docs/images/float8-loss.svg`.

LOSSES.jsonl is what `tests/bench/variants.py --losses --json` leaves. Above the losses, below what the second run's are
more than the first's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sft_cli.telemetry.report.axis import Axis, tick_texts, values_axis

WIDTH, LEFT, TOP = 760, 48, 28
LOSSES, GAPS, BETWEEN = 220, 90, 34
"""Heights of both pictures, and of what is between them."""
COLOURS = ("#2f6fb0", "#d1662b")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}line{stroke:#ccc}path{fill:none;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}line{stroke:#555}}"
)


def image(curves: dict[str, Sequence[float]]) -> str:
    (first, base), (second, other) = curves.items()
    gaps = [loss - known for loss, known in zip(other, base, strict=True)]
    losses, apart = values_axis([*base, *other], from_zero=True), values_axis(gaps, from_zero=False)
    low = TOP + LOSSES + BETWEEN
    height = low + GAPS + 24
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>Losses of {first} and {second} over {len(base)} steps</title><style>{STYLE}</style>",
            f'<text x="{LEFT}" y="16">loss: <tspan fill="{COLOURS[0]}">{first}</tspan>, '
            f'<tspan fill="{COLOURS[1]}">{second}</tspan></text>',
            *_ticks(losses, TOP, LOSSES),
            _path(base, losses, TOP, LOSSES, COLOURS[0]),
            _path(other, losses, TOP, LOSSES, COLOURS[1]),
            f'<text x="{LEFT}" y="{low - 8}">{second} minus {first}</text>',
            *_ticks(apart, low, GAPS),
            _path(gaps, apart, low, GAPS, COLOURS[1]),
            f'<text x="{LEFT}" y="{height - 6}">step 1</text>',
            f'<text x="{WIDTH - 8}" y="{height - 6}" text-anchor="end">step {len(base)}</text>',
            "</svg>",
        ]
    )


def _path(values: Sequence[float], axis: Axis, top: int, height: int, colour: str) -> str:
    step = (WIDTH - LEFT - 8) / (len(values) - 1)
    points = (f"{LEFT + at * step:.1f},{top + height * (1 - axis.place(value)):.1f}" for at, value in enumerate(values))
    return f'<path stroke="{colour}" d="M{"L".join(points)}"/>'


def _ticks(axis: Axis, top: int, height: int) -> Iterator[str]:
    ticks = axis.ticks()
    for tick, text in zip(ticks, tick_texts(ticks, 1), strict=True):
        y = top + height * (1 - axis.place(tick))
        yield f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


if __name__ == "__main__":
    read = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    Path(sys.argv[2]).write_text(image({run["variant"]: run["losses"] for run in read[:2]}) + "\n", encoding="utf-8")
