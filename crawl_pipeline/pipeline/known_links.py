"""Links that a worker knows to be in the frontier: most links of a page are, and need not be sent again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crawl_pipeline.domain.pages import FoundLink, PageUrl

MOST = 200_000  # of two generations each; about 20 MB


class KnownLinks:
    """A bounded set in two generations: when the young one is full it becomes the old one, and the old is forgotten.

    It holds the keys' integers: a UUID hashes and compares in Python, at many times their cost.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._young: set[int] = set()
        self._old: set[int] = set()

    def unknown(self, pages: Iterable[PageUrl], depth: int, *, is_sitemap: bool = False) -> tuple[FoundLink, ...]:
        """Links at `depth` to those of the pages that are not known to be stored."""
        young, old = self._young, self._old
        return tuple(
            [
                FoundLink(page=page, depth=depth, is_sitemap=is_sitemap)
                for page in pages
                if page.key.int not in young and page.key.int not in old
            ]
        )

    def remember(self, links: Sequence[FoundLink]) -> None:
        """These are stored, or counted beyond the source's limit."""
        self._young.update(link.page.key.int for link in links)
        if len(self._young) >= self._most:
            self._young, self._old = set(), self._young
