"""A crawl as a small picture for the UI, and its statuses and answer times as tables. Pure: numbers in, Markdown out.

The UI shows Markdown without a click only where it is shorter than 1,000 characters, and an SVG within it only as
a data URI: the picture has as many spans as fit.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage.crawl_history import SPANS, CrawlHistory

SHOWN_AT_ONCE = 1_000  # characters, fewer than
WIDTH, HEIGHT = 480, 96
_MOST_STATUSES = 8
_MOST_NAME = 40  # characters of a host's name
# From the ground up: the colour in the picture, its name in the legend, and what it stands for.
_COLOURS = {
    UrlState.ACCEPTED: ("#3a6", "green", "accepted"),
    UrlState.UNCHANGED: ("#48e", "blue", "unchanged"),
    UrlState.REJECTED: ("#e83", "orange", "rejected"),
    UrlState.QUARANTINED: ("#c33", "red", "quarantined"),
    UrlState.QUEUED: ("#96d", "violet", "to be tried again"),
    UrlState.CANCELLED: ("#b86", "brown", "cancelled"),
}


def picture(history: CrawlHistory) -> str:
    """Pages per second over time by outcome, with its legend; short enough to be shown at once."""
    states = [state for state in _COLOURS if any(history.outcomes.get(state, ()))]
    legend = ", ".join(f"{_COLOURS[s][1]} {_COLOURS[s][2]} {sum(history.outcomes[s]):,}" for s in states)
    most = max(map(sum, zip(*(history.outcomes[state] for state in states), strict=True)))
    said = f"at most {most / history.span:.3g} a second, over {_clock(history.span * SPANS)}: {legend}"
    for merged in (1, 2, 3, 4, 6, 8):
        encoded = base64.b64encode(svg(history, states, merged).encode()).decode()
        markdown = f"![pages per second](data:image/svg+xml;base64,{encoded})\n\n{said}"
        if len(markdown.encode("utf-16-le")) < 2 * SHOWN_AT_ONCE:  # as JavaScript counts
            return markdown
    return said


def svg(history: CrawlHistory, states: Sequence[UrlState], merged: int) -> str:
    """The outcomes on top of one another, `merged` spans in one step."""
    steps = SPANS // merged
    sums = [0] * steps
    layers = []
    for state in states:
        counts = history.outcomes[state]
        sums = [low + sum(counts[at * merged : (at + 1) * merged]) for at, low in enumerate(sums)]
        layers.append((sums, _COLOURS[state][0]))
    most = max(sums)
    # The tallest first: each layer hides the lower part of the one before.
    paths = [f'<path fill="{colour}" d="{_steps(heights, most)}"/>' for heights, colour in reversed(layers)]
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">{"".join(paths)}</svg>'


def _steps(heights: Sequence[int], most: int) -> str:
    width = WIDTH // len(heights)
    path, x, y = [f"M0 {HEIGHT}"], 0, HEIGHT
    for height in heights:
        top = HEIGHT - max(round(height * HEIGHT / most), 1 if height else 0)  # what is there is seen
        x += width
        if top == y and len(path) > 1:
            path[-1] = f"H{x}"
        else:
            path += [f"V{top}", f"H{x}"]
            y = top
    return "".join([*path, f"V{HEIGHT}z"])


def statuses(history: CrawlHistory) -> str:
    """How many answers had which status."""
    rows = list(history.statuses.items())
    shown = [f"| {'no answer' if name == 'none' else name} | {n:,} |" for name, n in rows[:_MOST_STATUSES]]
    rest = sum(n for _, n in rows[_MOST_STATUSES:])
    return "\n".join(["| status | answers |", "|---|---:|", *shown, *([f"| other | {rest:,} |"] if rest else [])])


def answer_times(history: CrawlHistory) -> str:
    """How long the hosts with most answers took."""
    rows = [
        f"| {host.authority[-_MOST_NAME:]} | {host.exchanges:,} | {_seconds(host.mean)} | {_seconds(host.longest)} |"
        for host in history.hosts
    ]
    more = history.host_count - len(rows)
    table = "\n".join(["| host | answers | mean | longest |", "|---|---:|---:|---:|", *rows])
    return table + (f"\n\nand {more:,} other hosts" if more > 0 else "")


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )
