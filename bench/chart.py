"""The bar chart of a run, as SVG written by hand: it has to look well on light and on dark pages."""

from collections.abc import Sequence
from html import escape
from typing import Final

from bench.rounds import Prepared

WIDTH, NAME_WIDTH, VALUE_WIDTH = 760, 230, 70
BAR, GAP, PANEL_GAP, HEAD = 16, 6, 26, 24
PANELS: Final = (
    ("warm", "Warm: shuffled 224 px batches, samples/s"),
    ("augment", "Warm, RandomResizedCrop and flip from 256 px, samples/s"),
    ("cold", "Cold: epoch 0 from S3 at 30 ms a request, samples/s"),
    ("prepare", "Prepare: JPEGs to 224 px raw, images/s"),
)
STYLE: Final = """
text { font: 12px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 13px }
.value { fill: #59636e }
.stager { fill: #1a7f5a } .limit { fill: #d1d9e0 } .peer { fill: #8c96a3 }
.spread { stroke: #1f2328; stroke-width: 1; opacity: .55 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .value { fill: #9198a1 }
  .stager { fill: #3fb984 } .limit { fill: #3d444d } .peer { fill: #656c76 }
  .spread { stroke: #f0f6fc }
}
"""


def chart(rows: Sequence[Prepared]) -> str:
    """All panels, one below the other. Bars are medians, the lines over them the spread of the rounds."""
    parts: list[str] = []
    y = 8
    for scenario, title in PANELS:
        shown = [row for row in rows if row.scenario == scenario and row.figures.get("rate")]
        if shown:
            drawn, y = _panel(title, shown, y)
            parts += drawn
    parts.append(_legend(y))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 28}" role="img" '
        f'aria-label="stager and its peers, samples per second">\n<style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(title: str, rows: Sequence[Prepared], y: int) -> tuple[list[str], int]:
    most = max(max(row.figures["rate"]) for row in rows)
    parts = [f'<text class="title" x="0" y="{y + 13}">{escape(title)}</text>']
    y += HEAD
    for row in sorted(rows, key=lambda row: -(row.figure() or 0.0)):
        parts += _bar(row, y, (WIDTH - NAME_WIDTH - VALUE_WIDTH) / most)
        y += BAR + GAP
    return parts, y + PANEL_GAP - GAP


def _bar(row: Prepared, y: int, scale: float) -> list[str]:
    rate = row.figure() or 0.0
    kind = row.peer if row.peer in ("stager", "limit") else "peer"
    low, high = (NAME_WIDTH + scale * extreme(row.figures["rate"]) for extreme in (min, max))
    middle, width = y + BAR / 2, max(1.0, scale * rate)
    parts = [
        f'<text x="{NAME_WIDTH - 8}" y="{y + 12}" text-anchor="end">{escape(row.who)}</text>',
        f'<rect class="{kind}" x="{NAME_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        f'<text class="value" x="{high + 6:.1f}" y="{y + 12}">{rate:,.0f}</text>',
    ]
    if high - low > 1:
        parts.insert(2, f'<path class="spread" d="M{low:.1f} {middle}H{high:.1f}"/>')
    return parts


def _legend(y: int) -> str:
    items = (("stager", "stager"), ("limit", "limit of the machine"), ("peer", "peers"))
    parts = []
    x = NAME_WIDTH
    for kind, text in items:
        parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="12" height="12" rx="2"/>')
        parts.append(f'<text class="value" x="{x + 18}" y="{y + 10}">{text}</text>')
        x += 34 + 7 * len(text)
    return "\n".join(parts)
