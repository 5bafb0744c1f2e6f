"""Every exception that crosses a layer. Each class answers one question: what must the caller do?

CrawlError                      the base: its text is one sentence for a person, with what to do
├── UsageError                  exit 2: the person asked for something that cannot be; mend the request
│   ├── ContractError           exit 2: a source contract is wrong; mend the file (all faults are listed)
│   ├── UnknownSource           exit 2: no such source; the message lists those there are
│   └── CrawlInProgress         exit 2: another live crawl holds the source; wait for it or stop it
└── InfrastructureError         exit 1: nothing is wrong with the request; mend the machine and run again
    ├── DatabaseUnavailable     the database did not answer within its patience; work in hand is re-queued
    ├── SchemaMismatch          the schema is older or newer than the code; the message names the command
    └── WorkersKeepDying        child processes died again and again before doing any work

What the web does wrong is never an exception: it is an outcome with a reason (`domain.outcomes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class CrawlError(Exception):
    """Base of all errors shown to people; `str()` is the whole message and `exit_code` what a command returns."""

    exit_code = 1


class UsageError(CrawlError):
    """The request itself is wrong."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractFault:
    """One fault of one contract: `path` is dotted (`politeness.min_delay`), `line` is 1-based or None."""

    path: str
    message: str
    line: int | None = None


class ContractError(UsageError):
    """One contract file, with every fault found in it."""

    def __init__(self, file: str, faults: Sequence[ContractFault]) -> None:
        self.file = file
        self.faults = tuple(faults)
        width = max((len(f.path) for f in self.faults), default=0)
        count = f"{len(self.faults)} problem{'s' if len(self.faults) != 1 else ''}"
        lines = [f"{file}: {count}"]
        for fault in self.faults:
            where = f"  (line {fault.line})" if fault.line is not None else ""
            lines.append(f"  {fault.path:<{width}}  {fault.message}{where}")
        super().__init__("\n".join(lines))


class ContractErrors(UsageError):
    """Every faulty contract of the source folders, reported together."""

    def __init__(self, errors: Sequence[ContractError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class UnknownSource(UsageError):
    """The named source is in no contract folder and not in the database."""

    def __init__(self, source: str, known: Sequence[str]) -> None:
        self.source = source
        there = ", ".join(known) if known else "none yet; put a contract into a folder of CRAWL_SOURCES"
        super().__init__(f'no source named "{source}"; sources are: {there}')


class CrawlInProgress(UsageError):
    """A live crawl or re-extraction holds the source."""

    def __init__(self, source: str, kind: str, crawl_id: str, where: str) -> None:
        self.source = source
        self.crawl_id = crawl_id
        super().__init__(
            f'"{source}" already has a live {kind}, {crawl_id} ({where}); '
            f"wait for it (crawl-pipeline status {source}) or terminate its run"
        )


class InfrastructureError(CrawlError):
    """The machine, the network to the database or the database failed; no page is to blame."""


class DatabaseUnavailable(InfrastructureError):
    """The database could not be reached, or did not answer in time, for as long as patience lasted."""


class SchemaMismatch(InfrastructureError):
    """The database's schema is not the one that this code works with."""


class WorkersKeepDying(InfrastructureError):
    """Worker processes ended again and again without progress."""
