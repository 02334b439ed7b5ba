"""Line charts as SVG that takes its colours from the page (light or dark) and can be zoomed."""

from __future__ import annotations

import math
from html import escape

from mithridate.report.figures import x_range
from mithridate.report.views import CurveView

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 690, 340, 56, 200, 12, 40
COLOURS = 8


def line_chart(view: CurveView, chart_id: str) -> str:
    """One chart with its legend and a description for screen readers; empty lines are left out."""
    chart_id = escape(chart_id)
    lines = {label: line for label, line in view.lines.items() if line}
    points = [p for line in lines.values() for p in line]
    if not points:
        return ""
    x_ticks = ticks(*x_range(lines))
    y_ticks = ticks(min(0.0, *(y for _, y in points)), max(y for _, y in points))
    x0, x1, y0, y1 = x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1]

    def px(x: float) -> float:
        return LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    ends = "; ".join(f"{label} ends at {line[-1][1]:.1f}" for label, line in lines.items())
    parts = [
        f'<svg class="chart" id="{chart_id}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'tabindex="0" aria-labelledby="{chart_id}-t {chart_id}-d" '
        f'data-box="0 0 {WIDTH} {HEIGHT}">',
        f'<title id="{chart_id}-t">{escape(view.title)}</title>',
        f'<desc id="{chart_id}-d">{escape(ends)}</desc>',
    ]
    for y in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py(y):.1f}" '
                     f'y2="{py(y):.1f}"/>')  # fmt: skip
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{py(y) + 4:.1f}" text-anchor="end">'
                     f"{y:g}</text>")  # fmt: skip
    for x in x_ticks:
        parts.append(f'<text class="tick" x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 16}" '
                     f'text-anchor="middle">{x:g}</text>')  # fmt: skip
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="label" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">'
                 f"{escape(view.xlabel)}</text>")  # fmt: skip
    for i, (label, line) in enumerate(lines.items()):
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in line)
        colour = f"c{i % COLOURS}" + (" dashed" if i >= COLOURS else "")
        parts.append(f'<polyline class="{colour}" points="{path}"/>')
        y = TOP + 12 + 18 * i
        parts.append(f'<line class="{colour}" x1="{WIDTH - RIGHT + 10}" x2="{WIDTH - RIGHT + 28}" '
                     f'y1="{y}" y2="{y}"/>')  # fmt: skip
        parts.append(f'<text class="tick" x="{WIDTH - RIGHT + 33}" y="{y + 4}">'
                     f"{escape(label)}</text>")  # fmt: skip
    parts.append("</svg>")
    return "\n".join(parts)


def ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers that cover the range."""
    if high - low < 1e-6:  # else ticks would be the same when they are rounded
        high = low + 1.0
    raw = (high - low) / 5
    unit = 10 ** math.floor(math.log10(raw))
    step = next(s * unit for s in (1, 2, 2.5, 5, 10) if s * unit >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 10) for i in range(first, last + 1)]
