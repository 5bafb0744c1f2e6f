"""What a data engineer clicks: materialize, look, backfill, follow the lineage, launch from the Launchpad.

Screenshots of each scene go to `.screenshots` in the working directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.live.stack import IN_ONE_PROCESS, Stack, Ui

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOTS = Path(".screenshots")
LINEAGE = ("sources", "page_versions", "records")
PATIENCE = 60_000  # milliseconds for one click or sight

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900), IN_ONE_PROCESS]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="make browser installs what this needs")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A fresh tab; what its console calls an error fails the test only where the UI shows it too."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    yield page
    page.close()


def keep(tab: Any, name: str) -> None:
    """Write a screenshot of what is seen."""
    SCREENSHOTS.mkdir(exist_ok=True)
    tab.screenshot(path=SCREENSHOTS / f"{name}.png")


def choose(tab: Any, *sources: str) -> None:
    """Choose partitions in the dialog of a launch, and launch."""
    tab.get_by_text("Select a partition or create one").click()
    for source in sources:
        tab.get_by_text(source, exact=True).locator("visible=true").last.click()
    tab.keyboard.press("Escape")
    tab.get_by_role("button", name=re.compile("Launch")).last.click()


def wait_for_runs(ui: Ui, *sources: str) -> None:
    """Each source has a run that succeeded, and no other."""
    expected = [(source, "SUCCESS") for source in sorted(sources)]
    wait_until(lambda: sorted((run.source, run.status) for run in ui.runs(*sources)) == expected, within=400, every=0.5)


def test_a_partition_is_materialized_from_the_asset_page_and_shows_its_picture(stack: Stack, tab: Any) -> None:
    tab.goto(f"{stack.ui.url}/assets/page_versions")
    tab.get_by_role("button", name="Materialize…").first.click()
    choose(tab, "clicked")
    wait_for_runs(stack.ui, "clicked")
    tab.goto(f"{stack.ui.url}/assets/page_versions?view=partitions&partition=clicked")
    picture = tab.locator('img[src^="data:image/svg+xml"]').first
    picture.wait_for(state="visible")
    assert picture.evaluate("image => image.complete && image.naturalWidth") == 480
    tab.get_by_text("525", exact=True).first.wait_for(state="visible")
    keep(tab, "partition")


def test_a_backfill_of_two_partitions_crawls_both(stack: Stack, tab: Any) -> None:
    tab.goto(f"{stack.ui.url}/locations/crawl_pipeline/asset-groups/crawl/lineage")
    tab.get_by_role("button", name="Materialize all").click()
    choose(tab, "bulk_one", "bulk_two")
    wait_for_runs(stack.ui, "bulk_one", "bulk_two")
    assert [len(stack.shops[name].requests) for name in ("bulk_one", "bulk_two")] == [525, 525]
    tab.goto(f"{stack.ui.url}/assets/records?view=partitions&partition=bulk_two")
    tab.get_by_text("Materialized", exact=True).first.wait_for(state="visible")
    keep(tab, "backfill")


def test_the_lineage_goes_from_contracts_over_pages_to_records(stack: Stack, tab: Any) -> None:
    tab.goto(f"{stack.ui.url}/locations/crawl_pipeline/asset-groups/crawl/lineage")
    places = []
    for name in LINEAGE:
        node = tab.get_by_text(name, exact=True).locator("visible=true").last
        node.wait_for(state="visible")
        places.append(node.bounding_box()["x"])
    assert places == sorted(places)
    keep(tab, "lineage")
