# SPDX-License-Identifier: Apache-2.0
"""Draws curves as SVG for the documents, in the manner of hami_hpc/accounting/formats/charts.py. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from hami_hpc.accounting.formats.charts import COLOURS, nice_ceiling

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 12, 44
_TEXT = 'font-family="system-ui, sans-serif" font-size="11" fill="#333"'

Series = tuple[str, Sequence[tuple[float, float]]]


def curves(title: str, x_unit: str, y_unit: str, series: Sequence[Series], logarithmic: str = "") -> str:
    """Returns lines with their points as SVG. logarithmic: "", "x", "y" or "xy"; there all values are above 0."""
    points = [point for _, line in series for point in line]
    x_of, x_ticks = _scale([x for x, _ in points], "x" in logarithmic, _LEFT, _WIDTH - _RIGHT)
    y_of, y_ticks = _scale([y for _, y in points], "y" in logarithmic, _HEIGHT - _BOTTOM, _TOP)
    body = []
    for value in y_ticks:
        body.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y_of(value):.1f}" y2="{y_of(value):.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y_of(value) + 4:.1f}" text-anchor="end" {_TEXT}>{value:,.10g}</text>'
        )
    for value in x_ticks:
        body.append(
            f'<text x="{x_of(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" {_TEXT}>'
            f"{value:,.10g}</text>"
        )
    middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_HEIGHT - _BOTTOM + _TOP) / 2
    body.append(f'<text x="{middle_x:.0f}" y="{_HEIGHT - 8}" text-anchor="middle" {_TEXT}>{escape(x_unit)}</text>')
    body.append(
        f'<text transform="translate(11 {middle_y:.0f}) rotate(-90)" text-anchor="middle" {_TEXT}>'
        f"{escape(y_unit)}</text>"
    )
    for number, (name, line) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in line:
            tip = escape(f"{name}, {x:,.6g} {x_unit}: {y:,.4g} {y_unit}")
            body.append(
                f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"><title>{tip}</title></circle>'
            )
        y = _TOP + 14 + 18 * number
        body.append(f'<rect x="{_WIDTH - _RIGHT + 12}" y="{y - 9}" width="12" height="12" fill="{colour}"/>')
        body.append(f'<text x="{_WIDTH - _RIGHT + 30}" y="{y + 1}" {_TEXT}>{escape(name)}</text>')
    description = f"{y_unit} by {x_unit}: {', '.join(name for name, _ in series)}"
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title><desc>{escape(description)}</desc>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>{"".join(body)}</svg>\n'
    )


def _scale(
    values: Sequence[float], logarithmic: bool, first: float, last: float
) -> tuple[Callable[[float], float], list[float]]:
    """Returns the place of a value, and the values at which there are marks."""
    if not logarithmic:
        top = nice_ceiling(max(values))
        return (lambda value: first + (last - first) * value / top), [top * quarter / 4 for quarter in range(5)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    return (lambda value: first + (last - first) * (math.log10(value) - low) / (high - low)), [
        10.0**power for power in range(low, high + 1)
    ]
