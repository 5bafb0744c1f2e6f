"""`docs/outcomes.md` against the code: every reason, and where a visit to each vice of a misbehaving site ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from crawl_pipeline.domain.outcomes import Reason, UrlState
from crawl_pipeline.fetching.transport import ClientName
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.crawling import load, rows, start
from crawl_pipeline_tests.fetching.vicious_site import ViciousSite

TEXT = (Path(__file__).parents[2] / "docs" / "outcomes.md").read_text(encoding="utf-8")


def table(title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    part = TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


VICES = {path: (state, reason) for path, _, state, reason in table("Vices")}


def test_every_reason_is_explained_once_with_the_states_that_there_are() -> None:
    found = table("Reasons")
    assert [reason for reason, *_ in found] == [reason.value for reason in Reason]
    states = {state for _, cell, *_ in found for state in cell.split(", ")}
    assert states <= {state.value for state in UrlState}


@pytest.mark.parametrize("client", ["libcurl", "requests"])
def test_each_vice_ends_as_its_row_says(database: Database, client: ClientName) -> None:
    with ViciousSite(hosts=len(VICES)) as site:
        urls = {site.url(path, f"127.0.0.{number}"): path for number, path in enumerate(VICES, start=1)}
        loaded = load(
            {
                "source": "vicious",
                "seeds": list(urls),
                "sitemaps": "none",
                "scope": {"hosts": [f"127.0.0.{number}:{site.port}" for number in range(1, len(VICES) + 1)]},
                "limits": {"max_depth": 0},
                "politeness": {"slots": 1, "min_delay": "0s", "robots": "ignore"},
                "fetch": {"client": client, "allow_networks": ["127.0.0.0/8"], "timeout": "2s", "max_bytes": "1MB"},
            }
        )
        running = start(database, loaded)
        visited = "SELECT count(DISTINCT url) AS n FROM fetches WHERE url = ANY(:urls)"
        wait_until(lambda: rows(database, visited, urls=list(urls))[0].n == len(VICES), within=120)
        running.stop.set()
        running.join()
    found = rows(database, "SELECT url, state, coalesce(reason, '') AS reason FROM urls WHERE discovered_from IS NULL")
    assert {urls[row.url]: (row.state, row.reason) for row in found} == VICES
