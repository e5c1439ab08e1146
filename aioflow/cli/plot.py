"""Hand-written SVG plots. They follow the reader's light or dark scheme and need no library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

__all__ = ("Bar", "Series", "bars", "lines")

_WIDTH = 720
_STYLE = """
  svg { font: 12px system-ui, sans-serif; background: #ffffff }
  text { fill: #24292f } .dim { fill: #6e7781 } .axis { stroke: #d0d7de }
  .s0 { fill: #2563eb; stroke: #2563eb } .s1 { fill: #d97706; stroke: #d97706 }
  .s2 { fill: #059669; stroke: #059669 } .s3 { fill: #dc2626; stroke: #dc2626 }
  .s4 { fill: #7c3aed; stroke: #7c3aed } .s5 { fill: #6e7781; stroke: #6e7781 }
  path { fill: none !important; stroke-width: 2 } .title { font-weight: 600; font-size: 14px }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #e6edf3 } .dim { fill: #8d96a0 }
    .axis { stroke: #30363d }
    .s0 { fill: #60a5fa; stroke: #60a5fa } .s1 { fill: #fbbf24; stroke: #fbbf24 }
    .s2 { fill: #34d399; stroke: #34d399 } .s3 { fill: #f87171; stroke: #f87171 }
    .s4 { fill: #a78bfa; stroke: #a78bfa } .s5 { fill: #8d96a0; stroke: #8d96a0 }
  }
"""
_COLORS = 5  # and the last one, for yardsticks


class Bar(NamedTuple):
    """One figure, with the yardstick drawn below it."""

    label: str
    value: float
    yardstick: float | None = None


class Series(NamedTuple):
    """One line; a yardstick is grey."""

    label: str
    points: Sequence[tuple[float, float]]
    is_yardstick: bool = False


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Draw figures side by side, each above its yardstick, on one scale from 0."""
    left, right, top, high = 210, 90, 44, 40
    values = [value for row in rows for value in (row.value, row.yardstick) if value is not None]
    scale = (_WIDTH - left - right) / (max(values, default=0) or 1)
    drawn = [_text(16, 26, f"{title} ({unit})", "title")]
    for number, row in enumerate(rows):
        y = top + number * high
        drawn.append(_text(left - 10, y + 17, row.label, anchor="end"))
        drawn.append(_bar(left, y + 4, row.value * scale, 14, "s0"))
        drawn.append(_text(left + row.value * scale + 6, y + 15, _short(row.value)))
        if row.yardstick is not None:
            length = row.yardstick * scale
            drawn.append(_bar(left, y + 20, length, 8, "s5"))
            drawn.append(_text(left + length + 6, y + 28, _short(row.yardstick), "dim"))
    height = top + len(rows) * high + 28
    drawn.append(_text(left, height - 10, "grey: the yardstick, in the same run", "dim"))
    return _picture(height, drawn)


def lines(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """Draw lines with a logarithmic x axis; the y axis begins at 0."""
    left, right, top, bottom, height = 80, 170, 50, 50, 360
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    low, span = math.log10(min(xs)), (math.log10(max(xs)) - math.log10(min(xs))) or 1.0
    peak = max(ys) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (math.log10(x) - low) / span * (_WIDTH - left - right),
            height - bottom - y / peak * (height - top - bottom),
        )

    drawn = [_text(16, 26, title, "title"), _text(left, top - 8, y_label, "dim")]
    drawn += [
        _text(place(x, 0)[0], height - bottom + 18, _short(x), anchor="middle")
        for x in sorted(set(xs))
    ]
    for part in (0.0, 0.5, 1.0):
        y = place(xs[0], part * peak)[1]
        drawn.append(f'<line class="axis" x1="{left}" x2="{_WIDTH - right}" y1="{y}" y2="{y}"/>')
        drawn.append(_text(left - 8, y + 4, _short(part * peak), anchor="end"))
    middle = (left + _WIDTH - right) / 2
    drawn.append(_text(middle, height - 10, x_label, "dim", anchor="middle"))
    for number, one in enumerate(series):
        color = f"s{_COLORS}" if one.is_yardstick else f"s{number % _COLORS}"
        drawn += _line([place(x, y) for x, y in one.points], color)
        y = top + 18 * number
        drawn.append(_bar(_WIDTH - right + 16, y, 12, 4, color))
        drawn.append(_text(_WIDTH - right + 34, y + 7, one.label))
    return _picture(height, drawn)


def _line(points: Sequence[tuple[float, float]], color: str) -> Iterable[str]:
    way = " L ".join(f"{x:.1f} {y:.1f}" for x, y in points)
    yield f'<path class="{color}" d="M {way}"/>'
    for x, y in points:
        yield f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _bar(x: float, y: float, width: float, height: float, color: str) -> str:
    wide = max(width, 1)
    return f'<rect class="{color}" x="{x}" y="{y}" width="{wide:.1f}" height="{height}"/>'


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _picture(height: int, drawn: Iterable[str]) -> str:
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )
