"""A crawl as a small picture for the UI: pages per second by outcome, statuses, and hosts' answer times.

The UI shows an SVG that comes as a data URI within Markdown, and nothing larger; each picture is stored twice with its
run, so that it is kept small. Pure: numbers in, text out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage.crawl_history import CrawlHistory, HostTimes

WIDTH, HEIGHT = 720, 252
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 36, 22, 384, 160
_RIGHT = 452
_MOST_STATUSES = 5
_MOST_NAME = 26  # characters of a host's name
# From the ground up. Readable on white and on black, and told apart without colours by their order.
_COLOURS = {
    UrlState.ACCEPTED: "#2e9e6b",
    UrlState.UNCHANGED: "#5b8def",
    UrlState.REJECTED: "#d9822b",
    UrlState.QUARANTINED: "#c23030",
    UrlState.QUEUED: "#9d7fe0",
    UrlState.CANCELLED: "#8a9ba8",
}
_NAMES = {UrlState.QUEUED: "to be tried again"}


def as_markdown(history: CrawlHistory) -> str:
    """The picture as Markdown with an image inside."""
    encoded = base64.b64encode(as_svg(history).encode()).decode()
    return f"![pages per second, statuses and answer times](data:image/svg+xml;base64,{encoded})"


def as_svg(history: CrawlHistory) -> str:
    """The picture by itself."""
    parts = [*_plot(history), *_statuses(history.statuses), *_hosts(history.hosts, history.host_count)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11" fill="#7d8b99">{"".join(parts)}</svg>'
    )


def _plot(history: CrawlHistory) -> Iterable[str]:
    states = [state for state in _COLOURS if any(history.outcomes.get(state, ()))]
    spans = len(next(iter(history.outcomes.values())))
    totals = [sum(history.outcomes[state][place] for state in states) for place in range(spans)]
    most = max(totals)
    ground = _TOP + _PLOT_HEIGHT
    yield _text(0, 12, "pages per second")
    yield _text(0, _TOP + 9, f"{most / history.span:.3g}")
    yield f'<path d="M{_LEFT} {_TOP}v{_PLOT_HEIGHT}h{_PLOT_WIDTH}" fill="none" stroke="#a7b6c2"/>'
    below = [0] * spans
    for state in states:
        above = [low + n for low, n in zip(below, history.outcomes[state], strict=True)]
        yield f'<path fill="{_COLOURS[state]}" d="{_band(below, above, most, ground)}"/>'
        below = above
    yield _text(_LEFT, ground + 14, f"{history.began_at:%H:%M:%S}")
    yield _text(_LEFT + _PLOT_WIDTH, ground + 14, f"+{_clock(history.span * spans)}", anchor="end")
    yield from _legend([(state, sum(history.outcomes[state])) for state in states], ground + 22)


def _legend(counts: Sequence[tuple[UrlState, int]], top: int) -> Iterable[str]:
    x, y = 0, top
    for state, n in counts:
        words = f"{_NAMES.get(state, state.value)} {n:,}"
        width = 26 + 6 * len(words)
        if x + width > _RIGHT - 20:
            x, y = 0, y + 15
        yield f'<rect x="{x}" y="{y}" width="9" height="9" fill="{_COLOURS[state]}"/>'
        yield _text(x + 13, y + 8, words)
        x += width


def _band(below: Sequence[int], above: Sequence[int], most: int, ground: int) -> str:
    """Steps along the upper edge, and back along the lower one; spans without anything of it are left out."""

    def height(n: int) -> int:
        return ground - round(n * _PLOT_HEIGHT / most)

    path = []
    for place, (low, high) in enumerate(zip(below, above, strict=True)):
        if high > low:
            x = _LEFT + place * _PLOT_WIDTH // len(below)
            width = _LEFT + (place + 1) * _PLOT_WIDTH // len(below) - x
            top, foot = height(high), height(low)
            top = min(top, foot - 1)  # what is there is seen
            path.append(f"M{x} {foot}V{top}h{width}V{foot}z")
    return "".join(path)


def _statuses(statuses: dict[str, int]) -> Iterable[str]:
    yield _text(_RIGHT, 12, "answers by status")
    rows = [(name if name != "none" else "no answer", n) for name, n in list(statuses.items())[:_MOST_STATUSES]]
    yield from _bars(rows, 22, [f"{n:,}" for _, n in rows], "#5b8def")


def _hosts(hosts: Sequence[HostTimes], count: int) -> Iterable[str]:
    which = f" ({len(hosts)} of {count:,} hosts)" if count > len(hosts) else ""
    yield _text(_RIGHT, 130, f"answer time, mean and longest{which}")
    rows = [(host.authority[-_MOST_NAME:], host.mean) for host in hosts]
    yield from _bars(rows, 140, [f"{_seconds(host.mean)}, {_seconds(host.longest)}" for host in hosts], "#2e9e6b")


def _bars(rows: Sequence[tuple[str, float]], top: int, words: Sequence[str], colour: str) -> Iterable[str]:
    most = max((n for _, n in rows), default=0) or 1
    for number, ((name, n), said) in enumerate(zip(rows, words, strict=True)):
        y = top + number * 18
        width = max(1, round((WIDTH - _RIGHT) * n / most))
        yield f'<rect x="{_RIGHT}" y="{y}" width="{width}" height="15" fill="{colour}" fill-opacity=".35"/>'
        yield _text(_RIGHT + 4, y + 11, name)
        yield _text(WIDTH - 2, y + 11, said, anchor="end")


def _text(x: int, y: int, words: str, *, anchor: str = "") -> str:
    side = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x}" y="{y}"{side}>{escape(words)}</text>'


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )
