"""The benchmark's tables, as Markdown that also reads well on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from crawl_pipeline_tests.bench.kills import KillResult
from crawl_pipeline_tests.bench.measure import Measurement
from crawl_pipeline_tests.bench.politeness import HostVerdict
from crawl_pipeline_tests.bench.stages import Stage


def speed_table(runs: Sequence[Measurement]) -> str:
    """One row a crawler; ratios are to the first row."""
    if not runs:
        return "nothing was measured"
    first = runs[0]
    head = ["crawler", "items", "requests", "crawling s", "command s", "pages/s", "ratio", "CPU ms/page", "ratio"]
    head += ["while crawling", "peak MB"]
    rows = [
        [
            run.name,
            str(run.items),
            str(run.requests),
            f"{run.crawling:.1f}",
            f"{run.elapsed:.1f}",
            f"{run.pages_per_second:.0f}",
            _ratio(first.pages_per_second, run.pages_per_second),
            _with_database(run.cpu / max(run.pages, 1) * 1000, run.database_cpu / max(run.pages, 1) * 1000, ".2f"),
            _ratio(run.cpu_per_page, first.cpu_per_page),
            f"{run.crawling_cpu / max(run.pages, 1) * 1000:.2f}",
            _with_database(run.peak_bytes / 1e6, run.database_peak_bytes / 1e6, ".0f"),
        ]
        for run in runs
    ]
    said = "\n".join(
        f"{run.name}: {', '.join(f'{name} {value}' for name, value in run.settings.items())}" for run in runs
    )
    about = (
        f"ratio: {first.name} against the row, above 1 is better; CPU and memory: crawler + its database; "
        "CPU is that of the whole command, and beside it what fell between the first and the last page request"
    )
    return f"\n{_markdown(head, rows)}\n\n{about}\n{said}\n"


def stage_table(stages: Sequence[Stage]) -> str:
    """One row a stage, and what all of them allow on two cores."""
    rows = [[stage.name, stage.where, f"{stage.microseconds:.0f}"] for stage in stages]
    total = sum(stage.microseconds for stage in stages)
    rows.append(["all", "", f"{total:.0f}"])
    return f"\n{_markdown(['stage', 'where', 'CPU µs a page'], rows)}\n\ntwo cores allow {2e6 / total:.0f} pages/s\n"


def kill_table(results: Sequence[tuple[int, KillResult]]) -> str:
    """One row a seed and crawler."""
    if not results:
        return "nothing was measured"
    head = [
        "seed",
        "crawler",
        "kills",
        "page requests",
        "repeated",
        "rows",
        "right",
        "duplicates",
        "missing",
        "wrong",
        "s",
    ]
    rows = [
        [
            str(seed),
            result.name,
            *map(str, (result.kills, result.requests, result.repeated, result.rows, result.right)),
            *map(str, (result.duplicates, result.missing, result.wrong)),
            f"{result.elapsed:.1f}",
        ]
        for seed, result in results
    ]
    return f"\n{_markdown(head, rows)}\n"


def politeness_table(verdicts: Sequence[HostVerdict]) -> str:
    """One row a host: what it saw against its budget."""
    head = ["host", "requests", "slots", "most open", "delay s", "least gap s", "most in 5 s", "of", "429s", "in rests"]
    head += ["violations"]
    rows = [
        [
            one.host,
            str(one.requests),
            *map(str, (one.budget.slots, one.most_open, one.budget.delay)),
            f"{one.least_gap:.3f}",
            *map(str, (one.most_in_window, one.window_budget, one.throttles, one.in_rests)),
            "; ".join(one.violations) or "-",
        ]
        for one in verdicts
    ]
    return f"\n{_markdown(head, rows)}\n"


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.1f}x" if theirs else "-"


def _with_database(crawler: float, database: float, digits: str) -> str:
    return f"{crawler:{digits}} + {database:{digits}}" if database else f"{crawler:{digits}}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        f"| {' | '.join(f'{cell:<{width}}' for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )
