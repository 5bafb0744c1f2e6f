"""Links that a worker knows to be in the frontier: most links of a page are, and need not be sent again."""

from __future__ import annotations

from collections.abc import Sequence

from crawl_pipeline.domain.pages import FoundLink, UrlKey

MOST = 200_000  # of two generations each; about 20 MB


class KnownLinks:
    """A bounded set in two generations: when the young one is full it becomes the old one, and the old is forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._young: set[UrlKey] = set()
        self._old: set[UrlKey] = set()

    def unknown(self, links: Sequence[FoundLink]) -> tuple[FoundLink, ...]:
        """The links that are not known to be stored."""
        return tuple(link for link in links if link.page.key not in self._young and link.page.key not in self._old)

    def remember(self, links: Sequence[FoundLink]) -> None:
        """These are stored, or counted beyond the source's limit."""
        self._young.update(link.page.key for link in links)
        if len(self._young) >= self._most:
            self._young, self._old = set(), self._young
