"""The committer: the one thread of a worker that waits for the database, so that the crawl loop never does.

Commits what has gathered, in groups; between groups it answers the loop's questions (claims, robots.txt, bodies).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.exc import DBAPIError

from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.domain.pages import CompletedPage
from crawl_pipeline.storage.failures import Failure, classify
from crawl_pipeline.storage.frontier import Completion, Frontier

GROUP = 64  # most pages of one transaction

log = logging.getLogger(__name__)

Reply = Callable[[], None]


class DatabaseThread(threading.Thread):
    """Takes pages and questions from the loop; replies are run by the loop, in its own thread, from `replies`."""

    def __init__(
        self,
        frontier: Frontier,
        *,
        on_committed: Callable[[Sequence[CompletedPage], Completion], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(name="committer", daemon=True)
        self._frontier = frontier
        self._on_committed = on_committed
        self._wake = wake
        self._lock = threading.Condition()
        self._pages: deque[CompletedPage] = deque()
        self._questions: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._replies: deque[Reply] = deque()
        self._is_closing = False
        self.error: BaseException | None = None

    def commit(self, page: CompletedPage) -> None:
        """Store a page with the next group."""
        with self._lock:
            self._pages.append(page)
            self._lock.notify()

    def ask(self, question: Callable[[], Any], reply: Callable[[Any], None]) -> None:
        """Run `question` here, then `reply` with its answer in the loop's thread."""
        with self._lock:
            self._questions.append((question, reply))
            self._lock.notify()

    def fail(self, error: BaseException) -> None:
        """Another thread that the loop depends on has ended by an error: the loop ends by it too. Any thread."""
        self.error = error
        self._wake()

    def replies(self) -> list[Reply]:
        """What the loop is to run now. Raises what ended this thread, if something did."""
        if self.error is not None:
            raise self.error
        replies: list[Reply] = []
        while self._replies:
            replies.append(self._replies.popleft())
        return replies

    def close(self, timeout: float) -> None:
        """Commit what was handed over, answer what was asked, and end; waits at most `timeout` seconds."""
        with self._lock:
            self._is_closing = True
            self._lock.notify()
        self.join(timeout)

    def run(self) -> None:
        """Serve until closed. An error ends the thread and is raised in the loop."""
        try:
            while self._serve_once():
                pass
        except BaseException as error:
            self.error = error
            self._wake()

    def _serve_once(self) -> bool:
        with self._lock:
            while not (self._pages or self._questions):
                if self._is_closing:
                    return False
                self._lock.wait()
            pages = [self._pages.popleft() for _ in range(min(GROUP, len(self._pages)))]
            asked = self._questions.popleft() if self._questions else None
        if pages:
            self._commit(pages)
        if asked is not None:
            question, reply = asked
            answer = question()
            self._replies.append(lambda: reply(answer))
        self._wake()
        return True

    def _commit(self, pages: Sequence[CompletedPage]) -> None:
        try:
            completion = self._frontier.complete(pages)
        except DBAPIError as error:
            if classify(error) is not Failure.OURS:
                raise  # endless conflicts; outages are waited out or raised otherwise
            if len(pages) > 1:
                for page in pages:
                    self._commit([page])
                return
            log.error("page_unstorable", extra={"url_key": str(pages[0].key), "error": str(error.orig)[:500]})
            pages = [_unstorable(pages[0], str(error.orig))]
            completion = self._frontier.complete(pages)
        self._replies.append(lambda: self._on_committed(pages, completion))


def _unstorable(page: CompletedPage, why: str) -> CompletedPage:
    """The page without what the database refused, for a person to look at."""
    if "index row size" in why:
        why = "a natural key or another indexed value is longer than the database can index (about 2,700 bytes)"
    first_line = why.strip().splitlines()[0][:300] if why.strip() else "no reason given"
    fetches = tuple(
        replace(fetch, failure=Reason.UNSTORABLE.value, detail=first_line, http_version=None) for fetch in page.fetches
    )
    return replace(
        page,
        state=UrlState.QUARANTINED,
        reason=Reason.UNSTORABLE.value,
        due_at=None,
        etag=None,
        last_modified=None,
        fetches=fetches,
        version=None,
        extraction=None,
        links=(),
        records=None,
    )
