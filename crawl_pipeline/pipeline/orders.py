"""What a supervisor tells a worker process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

EXIT_INFRASTRUCTURE = 75  # the worker gave up for the machine's sake; the sentence is on its standard output


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
    hand_fd: int
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
