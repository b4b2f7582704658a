# SPDX-License-Identifier: Apache-2.0
"""Draws charts as inline SVG, without scripts or network access, for screen and paper. Pure.

The colours are those of Okabe and Ito, which people with colour-vision deficiencies can distinguish. Every chart has a
title and a description for screen readers, and a table beside it has the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
# The colour of the light part of a bar, and of the line around it that makes it visible on paper.
_LIGHT, _EDGE = "#C9D6DF", "#5F7585"
_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 12, 40
_TEXT = 'font-family="system-ui, sans-serif" font-size="11" fill="#333"'


def bars(title: str, unit: str, labels: Sequence[str], series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Returns stacked vertical bars as SVG. series: (name, one value per label); values must not be negative."""
    totals = [sum(values[index] for _, values in series) for index in range(len(labels))]
    top = nice_ceiling(max(totals, default=0))
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    body = [_axis(top, unit)]
    for index, label in enumerate(labels):
        x = _LEFT + index * step
        below = 0.0
        for number, (name, values) in enumerate(series):
            height = _scaled(values[index], top)
            y = _HEIGHT - _BOTTOM - below - height
            tip = escape(f"{label}{f', {name}' if name else ''}: {values[index]:,.1f} {unit}")
            body.append(
                f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}" '
                f'fill="{COLOURS[number % len(COLOURS)]}"><title>{tip}</title></rect>'
            )
            below += height
    body += _labels(labels, step)
    description = f"{unit} by {len(labels)} bars, from {labels[0]} to {labels[-1]}" if labels else "no data"
    named = [(name, COLOURS[number % len(COLOURS)]) for number, (name, _) in enumerate(series)]
    return (_legend(named) if len(named) > 1 else "") + _svg(title, description, _HEIGHT, body)


def shares(title: str, unit: str, part_name: str, rest_name: str, rows: Sequence[tuple[str, float, float]]) -> str:
    """Returns horizontal bars as SVG. rows: (label, part, whole); the part is dark, the rest of the whole is light."""
    height = 24 * len(rows) + 8
    largest = max((whole for _, _, whole in rows), default=0) or 1
    body = []
    for index, (label, part, whole) in enumerate(rows):
        y = 4 + 24 * index
        outer, inner = (round((_WIDTH - 260) * value / largest, 1) for value in (whole, part))
        tip = escape(f"{label}: {part:,.1f} of {whole:,.1f} {unit}")
        body.append(f'<text x="160" y="{y + 14}" text-anchor="end" {_TEXT}>{escape(shortened(label, 24))}</text>')
        body.append(
            f'<rect x="168" y="{y}" width="{outer}" height="18" fill="{_LIGHT}" stroke="{_EDGE}">'
            f"<title>{tip}</title></rect>"
        )
        body.append(
            f'<rect x="168" y="{y}" width="{inner}" height="18" fill="{COLOURS[0]}"><title>{tip}</title></rect>'
        )
        body.append(f'<text x="{172 + outer}" y="{y + 14}" {_TEXT}>{whole:,.1f}</text>')
    return _legend([(part_name, COLOURS[0]), (rest_name, _LIGHT)]) + _svg(
        title, f"{len(rows)} bars in {unit}", height, body
    )


def nice_ceiling(value: float) -> float:
    """Returns the smallest of 1, 2, 2.5, 5 times a power of ten that is not below ``value``; 1 for 0 or less."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= value)


def shortened(text: str, most: int) -> str:
    """Returns the text, shortened to ``most`` characters with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _scaled(value: float, top: float) -> float:
    return (_HEIGHT - _TOP - _BOTTOM) * value / top


def _axis(top: float, unit: str) -> str:
    """Returns the grid lines with their values."""
    parts = []
    for quarter in range(5):
        value = top * quarter / 4
        y = _HEIGHT - _BOTTOM - _scaled(value, top)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" {_TEXT}>{value:,.10g}</text>')
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(
        f'<text transform="translate(11 {middle:.0f}) rotate(-90)" text-anchor="middle" {_TEXT}>{escape(unit)}</text>'
    )
    return "".join(parts)


def _labels(labels: Sequence[str], step: float) -> list[str]:
    """Returns as many labels as fit without overlap."""
    widest = max((len(label) for label in labels), default=1) * 6.5 + 8
    every = max(1, -(-int(widest) // max(1, int(step))))
    return [
        f'<text x="{_LEFT + (index + 0.5) * step:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" {_TEXT}>'
        f"{escape(label)}</text>"
        for index, label in enumerate(labels)
        if index % every == 0
    ]


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    """Returns the legend: names and their colours."""
    keys = "".join(
        f'<span class="key"><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" '
        f'fill="{colour}"{_edge(colour)}/></svg> {escape(name)}</span>'
        for name, colour in entries
    )
    return f'<div class="legend">{keys}</div>'


def _edge(colour: str) -> str:
    return f' stroke="{_EDGE}"' if colour == _LIGHT else ""


def _svg(title: str, description: str, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title><desc>{escape(description)}</desc>'
        f"{''.join(body)}</svg>"
    )
