"""Writes an image of two runs' losses: `python docs/loss_curves.py LOSSES.jsonl docs/images/float8-loss.svg`.

LOSSES.jsonl is what `tests/bench/variants.py --losses --json` leaves. Above the losses, below what the second run's are
more than the first's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

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
    highest, lowest = max(*base, *other), min(0.0, *base, *other)
    reach = max(map(abs, gaps))
    low = TOP + LOSSES + BETWEEN
    height = low + GAPS + 24
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>Losses of {first} and {second} over {len(base)} steps</title><style>{STYLE}</style>",
            f'<text x="{LEFT}" y="16">loss: <tspan fill="{COLOURS[0]}">{first}</tspan>, '
            f'<tspan fill="{COLOURS[1]}">{second}</tspan></text>',
            *_ticks((lowest, highest), TOP, LOSSES, [0, 4, 8, 12]),
            _path(base, (lowest, highest), TOP, LOSSES, COLOURS[0]),
            _path(other, (lowest, highest), TOP, LOSSES, COLOURS[1]),
            f'<text x="{LEFT}" y="{low - 8}">{second} minus {first}</text>',
            *_ticks((-reach, reach), low, GAPS, [-0.2, 0, 0.2]),
            _path(gaps, (-reach, reach), low, GAPS, COLOURS[1]),
            f'<text x="{LEFT}" y="{height - 6}">step 1</text>',
            f'<text x="{WIDTH - 8}" y="{height - 6}" text-anchor="end">step {len(base)}</text>',
            "</svg>",
        ]
    )


def _y(value: float, span: tuple[float, float], top: int, height: int) -> float:
    return top + height * (span[1] - value) / (span[1] - span[0])


def _path(values: Sequence[float], span: tuple[float, float], top: int, height: int, colour: str) -> str:
    step = (WIDTH - LEFT - 8) / (len(values) - 1)
    points = (f"{LEFT + index * step:.1f},{_y(value, span, top, height):.1f}" for index, value in enumerate(values))
    return f'<path stroke="{colour}" d="M{"L".join(points)}"/>'


def _ticks(span: tuple[float, float], top: int, height: int, values: Sequence[float]) -> list[str]:
    lines = []
    for value in values:
        if span[0] <= value <= span[1]:
            y = _y(value, span, top, height)
            lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>')
            lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    return lines


if __name__ == "__main__":
    read = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    Path(sys.argv[2]).write_text(image({run["variant"]: run["losses"] for run in read[:2]}) + "\n", encoding="utf-8")
