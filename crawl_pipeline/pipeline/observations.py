"""How hosts answer, as this worker sees it: the crawl loop notes answers, the heartbeat tells the database.

A healthy host costs a row's update every few seconds, never a part of a commit. What it means is `observed`'s, in SQL.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from crawl_pipeline.domain.politeness import SLOW, HostObservation

_TELL_EVERY = 5.0  # seconds, of a host that answers well; trouble is told at once
_LEAST_SECONDS = 0.001  # the logarithm of nothing is not finite


@dataclass(slots=True)
class _Seen:
    answers: int = 0
    log_seconds: float = 0.0
    failures: int = 0
    is_trouble: bool = False


class Observations:
    """Answers per host since they were last told. `note` is the loop's, `take` the heartbeat's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[int, _Seen] = {}
        self._told_at: dict[int, float] = {}

    def note(self, host_id: int, seconds: float, *, failed: bool) -> None:
        """An answer came, or speaks against its host; how long a failure took says nothing."""
        with self._lock:
            seen = self._seen.setdefault(host_id, _Seen())
            if failed:
                seen.failures += 1
            else:
                seen.answers += 1
                seen.log_seconds += math.log(max(seconds, _LEAST_SECONDS))
            seen.is_trouble = seen.is_trouble or failed or seconds > SLOW

    def take(self, now: float) -> list[HostObservation]:
        """What is to be told now (`now` is monotonic): trouble, and what was not told for a while."""
        with self._lock:
            self._told_at = {host: at for host, at in self._told_at.items() if now - at < _TELL_EVERY}
            hosts = [host for host, seen in self._seen.items() if seen.is_trouble or host not in self._told_at]
            taken = {host: self._seen.pop(host) for host in hosts}
            self._told_at.update(dict.fromkeys(hosts, now))
        return [
            HostObservation(host_id=host, answers=seen.answers, log_seconds=seen.log_seconds, failures=seen.failures)
            for host, seen in taken.items()
        ]

    def put_back(self, untold: Sequence[HostObservation]) -> None:
        """These could not be told; they are at the next call of `take`."""
        with self._lock:
            for one in untold:
                seen = self._seen.setdefault(one.host_id, _Seen())
                seen.answers += one.answers
                seen.log_seconds += one.log_seconds
                seen.failures += one.failures
                self._told_at.pop(one.host_id, None)
