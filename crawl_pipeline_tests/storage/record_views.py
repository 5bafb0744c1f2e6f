"""Records as the tests of records look at them."""

from __future__ import annotations

from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.storage import sources
from crawl_pipeline_tests.storage.world import World, page_url

A, B, C = "http://a/", "http://b/", "http://c/"


def current(world: World) -> list[tuple[str, int, str, bool, bool]]:
    """(sku, price, page, is missing, is gone) of every record."""
    pages_by_key = {page_url(url).key: url for url in (A, B, C)}
    rows = world.rows("SELECT data, url_key, missing_since, gone_at FROM records ORDER BY data ->> 'sku'")
    return [
        (r.data["sku"], r.data["price"], pages_by_key[r.url_key], r.missing_since is not None, r.gone_at is not None)
        for r in rows
    ]


def history(world: World) -> list[tuple[int, bool]]:
    """(price, is current) of all record versions, in order."""
    rows = world.rows("SELECT data, valid_to FROM record_versions ORDER BY record_id, valid_from")
    return [(row.data["price"], row.valid_to is None) for row in rows]


def conflicts(world: World) -> int:
    return int(world.scalar("SELECT count(*) FROM record_pages WHERE data IS NOT NULL"))


def removals(world: World, shop: tuple[int, CrawlId], max_drop: float, *, force: bool = False) -> sources.Removal:
    with world.database.connection() as connection:
        return sources.apply_removals(connection, *shop, "product", max_drop, force=force)
