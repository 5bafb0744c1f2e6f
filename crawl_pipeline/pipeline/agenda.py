"""Which slot may start something when: the crawl loop's agenda."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator

from crawl_pipeline.pipeline.leases import Slot
from crawl_pipeline.pipeline.visit import RobotsFetch


class Agenda:
    """Slots by the time of their next start. A slot is on it once, while it is free or its hop waits."""

    def __init__(self) -> None:
        self._ready: list[tuple[float, int, Slot]] = []
        self._order = itertools.count()

    @property
    def next_at(self) -> float | None:
        """When (monotonic) the first slot may start."""
        return self._ready[0][0] if self._ready else None

    def free(self, slot: Slot, not_before: float = 0.0) -> None:
        """The slot waits for its next start."""
        slot.free(max(time.monotonic(), not_before))
        self.push(slot)

    def push(self, slot: Slot) -> None:
        """The slot waits for the start that it has."""
        self.push_at(slot, slot.starts_at)

    def push_at(self, slot: Slot, at: float) -> None:
        """What the slot carries waits for a time that is none of the slot's."""
        heapq.heappush(self._ready, (at, next(self._order), slot))

    def due(self, now: float) -> Iterator[Slot]:
        """Take the slots that may start now, one after the other; the caller may stop in between."""
        while self._ready and self._ready[0][0] <= now:
            slot = heapq.heappop(self._ready)[2]
            if isinstance(slot.hop, RobotsFetch) and slot.hop.is_away:
                yield slot
            elif slot.is_late(now):  # the loop was held up
                self.free(slot)
            elif slot.starts_at > now:
                self.push(slot)
            else:
                yield slot
