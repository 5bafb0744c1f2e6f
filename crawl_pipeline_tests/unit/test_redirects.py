"""Where a redirect leads, hop by hop: followed, refused, or left to a visit of the target's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from crawl_pipeline.domain.contract import parse_contract
from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.domain.pages import ClaimedUrl, Exchange, FetchRequest, Lease, LeaseToken, PageUrl
from crawl_pipeline.domain.urls import Canonicalizer
from crawl_pipeline.pipeline.decide import Verdict
from crawl_pipeline.pipeline.leases import DatabaseClock, HeldLease
from crawl_pipeline.pipeline.visit import Requests, Visit

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CONTRACT = parse_contract(
    {
        "source": "s",
        "seeds": ["http://shop.example/"],
        "scope": {"hosts": ["shop.example", "other.example", "shop.example:8443"], "exclude": ["/cart/**"]},
        "limits": {"max_depth": 2},
    },
    file="test",
)


def visit_of(url: str, depth: int = 1) -> Visit:
    page = Canonicalizer(CONTRACT.urls).page_url(url)
    assert isinstance(page, PageUrl)
    claimed = ClaimedUrl(
        key=page.key,
        url=page.url,
        depth=depth,
    )
    lease = Lease(
        token=LeaseToken(UUID(int=0)),
        source_id=1,
        host_id=1,
        authority=page.authority,
        expires_at=NOW,
        first_starts=(NOW,),
        period=timedelta(),
        delay=timedelta(),
        host_failures=0,
        urls=(claimed,),
    )
    held = HeldLease(lease, DatabaseClock(), timedelta(seconds=60))
    return Visit(held.slots[0], claimed, page)


def led(visit: Visit, location: str | None, status: int = 302) -> PageUrl | Verdict | None:
    headers = (("location", location),) if location is not None else ()
    exchange = Exchange(
        request=FetchRequest(url=visit.url), started_at=NOW, elapsed=0.1, status=status, headers=headers
    )
    return Requests(CONTRACT).redirect(visit, exchange)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("url", "location", "target"),
    [
        ("http://shop.example/", "https://shop.example/", "https://shop.example/"),
        ("http://shop.example/a", "/b", "http://shop.example/b"),
        ("https://shop.example/a", "//shop.example/b#part", "https://shop.example/b"),
        ("http://shop.example:8443/a", "https://shop.example:8443/a", "https://shop.example:8443/a"),
    ],
)
def test_redirect_within_the_authority_is_followed(status: int, url: str, location: str, target: str) -> None:
    hop = led(visit_of(url), location, status)
    assert isinstance(hop, PageUrl)
    assert hop.url == target


@pytest.mark.parametrize(
    ("location", "depth", "discovered"),
    [
        ("http://other.example/b?utm_source=x", 1, "http://other.example/b"),
        ("https://shop.example:8443/b", 1, "https://shop.example:8443/b"),
        ("http://other.example/cart/1", 1, None),  # out of scope there
        ("http://other.example/b", 2, None),  # one step deeper than it may be
        ("http://elsewhere.example/b", 1, None),
        ("http://shop.example/b", 1, None),  # from https to http
        ("/cart/1", 1, None),
        ("ftp://shop.example/b", 1, None),
        ("http://user:secret@other.example/b", 1, None),
    ],
)
def test_redirect_that_is_not_followed_names_its_target_and_what_is_in_scope_is_discovered(
    location: str, depth: int, discovered: str | None
) -> None:
    """Guards: the authority, the downgrade and the scope, each compared in `redirect` or `_admitted`."""
    verdict = led(visit_of("https://shop.example/a", depth), location)
    assert isinstance(verdict, Verdict)
    assert verdict.reason is Reason.REDIRECT_OUT
    assert (verdict.leads_to.url if verdict.leads_to else None) == discovered
    assert verdict.detail is not None
    assert verdict.detail.startswith("to ")
    assert "secret" not in verdict.detail


def test_loop_ends_at_the_first_url_that_comes_twice() -> None:
    visit = visit_of("http://shop.example/a")
    hop = led(visit, "/b")
    assert isinstance(hop, PageUrl)
    visit.go_on(hop)
    assert visit.target == hop
    verdict = led(visit, "/a")
    assert isinstance(verdict, Verdict)
    assert (verdict.reason, verdict.leads_to) == (Reason.REDIRECT_LOOP, None)


@pytest.mark.parametrize(("location", "status"), [("/b", 200), ("/b", 304), ("/b", 404), ("/b", 300)])
def test_other_answers_lead_nowhere(location: str, status: int) -> None:
    assert led(visit_of("http://shop.example/a"), location, status) is None
