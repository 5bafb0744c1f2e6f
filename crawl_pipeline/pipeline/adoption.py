"""Adoption: the target of a redirect is visited under the lease of the URL that led to it.

Owns who visits a target: this visit, another slot, or nobody any more. What its answer means is `answers`'.
"""

from __future__ import annotations

from collections.abc import Callable

from crawl_pipeline.domain.pages import UrlKey
from crawl_pipeline.pipeline.database_thread import DatabaseThread
from crawl_pipeline.pipeline.visit import Visit
from crawl_pipeline.storage.frontier import Frontier


class Adoption:
    """`visits` are the crawl loop's own: a target that is adopted takes the place of the visit that led to it."""

    def __init__(
        self,
        frontier: Frontier,
        thread: DatabaseThread,
        visits: dict[UrlKey, Visit],
        give_up: Callable[[Visit], None],
    ) -> None:
        self._frontier = frontier
        self._thread = thread
        self._visits = visits
        self._give_up = give_up
        self._asked: set[UrlKey] = set()  # targets that the database is asked about: another's redirect comes too late

    def adopt(self, visit: Visit, target: Visit, then: Callable[[bool], None]) -> None:
        """Tell `then` whether the target is this visit's, which it is unless somebody else visits it or has."""
        held, key, origin = visit.slot.held, target.claimed.key, visit.claimed.key

        def adopted(is_adopted: bool) -> None:
            if held.is_lost:
                self._give_up(visit)
                return
            if is_adopted:  # the slot is free when the target is stored
                del self._visits[origin]
                self._visits[key] = target
            then(is_adopted)

        waiting = next((claimed for claimed in held.waiting if claimed.key == key), None)
        if waiting is not None:
            held.waiting.remove(waiting)
            target.claimed = waiting
            adopted(True)
        elif key in self._visits or key in self._asked:
            adopted(False)
        else:

            def answered(is_adopted: bool) -> None:
                self._asked.discard(key)
                adopted(is_adopted)

            self._asked.add(key)
            self._thread.ask(lambda: self._frontier.adopt(held.token, target.claimed, origin), answered)
