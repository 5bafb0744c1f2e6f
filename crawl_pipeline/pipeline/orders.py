"""What a supervisor tells a worker process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from crawl_pipeline.errors import CrawlError, DatabaseUnavailable, InfrastructureError, UsageError

# What a worker gave up for, by its exit code; the sentence is on its standard output. The first class that fits counts.
_GAVE_UP: dict[int, type[CrawlError]] = {64: UsageError, 69: DatabaseUnavailable, 75: InfrastructureError}


def exit_code(error: CrawlError) -> int:
    """What a worker exits with when it gives up for `error`."""
    return next((code for code, kind in _GAVE_UP.items() if isinstance(error, kind)), 75)


def error_of(code: int, sentence: str) -> CrawlError | None:
    """What a worker gave up for; None where its exit code says nothing of the kind."""
    kind = _GAVE_UP.get(code)
    return kind(sentence or "a worker gave up and did not say why") if kind is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """One line of JSON on standard input. `kind`: `crawl` or `re_extraction`; times in seconds.

    The database's URL comes by environment (`CRAWL_WORKER_DATABASE`), never by argument.
    """

    kind: str
    crawl_id: str
    source_id: int
    run_id: str
    worker_id: str
    contract: str
    in_flight: int
    slots: int
    patience: float
    lease_for: float
    grace: float

    def to_line(self) -> bytes:
        """One line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Orders:
        """What `to_line` made."""
        return cls(**json.loads(line))
