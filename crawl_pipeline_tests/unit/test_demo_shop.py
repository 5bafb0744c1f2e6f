"""The demo shop: what it shows, what it answers, and what it says was asked of it."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup

from crawl_pipeline.demo import catalogue, pages
from crawl_pipeline.demo.contract import DEMO_SOURCE, demo_contract_text, demo_sources_folder
from crawl_pipeline.demo.shop import Shop, read_log
from crawl_pipeline.domain.contract_warnings import warnings
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.records import canonical_json
from crawl_pipeline.domain.scope import Admission, Refusal
from crawl_pipeline.parsing.acceptance import judge
from crawl_pipeline.parsing.document import parse
from crawl_pipeline.parsing.extraction import Extractor
from crawl_pipeline.pipeline.contract_files import load_contracts


@pytest.fixture(scope="module")
def running() -> Iterator[Shop]:
    with Shop.start(latency=0) as shop:
        yield shop


@pytest.fixture
def shop(running: Shop) -> Shop:
    running.set_day(0)
    running.requests.clear()
    running.other_requests.clear()
    return running


def ask(
    shop: Shop, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def links(html: str | bytes) -> list[str]:
    return [str(a["href"]) for a in BeautifulSoup(html, "html.parser").find_all("a", href=True)]


# The catalogue


def test_exactly_seven_products_change_from_one_day_to_the_next() -> None:
    for day in range(1, 160):  # every product changes twice within these days
        before, after = catalogue.expected_records(day - 1), catalogue.expected_records(day)
        changed = {sku for sku, record in after.items() if record != before[sku]}
        assert changed == {catalogue.product(number).sku for number in catalogue.changed_on(day)}
        assert len(changed) == 7
        assert all(after[sku] | {"price": None} == before[sku] | {"price": None} for sku in changed)


def test_only_the_pages_of_changed_products_change() -> None:
    changed = {n for n in range(1, 501) if pages.product_page(n, 4) != pages.product_page(n, 5)}
    assert changed == catalogue.changed_on(5)


def test_the_first_day_changes_nothing_and_shows_base_prices() -> None:
    assert catalogue.changed_on(0) == frozenset()
    assert catalogue.price_on(0, 1) == Decimal("89.09")


def test_products_have_names_paths_and_skus_of_their_own() -> None:
    products = [catalogue.product(number) for number in range(1, catalogue.PRODUCTS + 1)]
    for distinct in ("name", "path", "sku", "description"):
        assert len({getattr(product, distinct) for product in products}) == 500


def test_following_links_from_the_seed_reaches_every_page_once_each(shop: Shop) -> None:
    wanted, seen = ["/list/0"], {"/list/0"}
    while wanted:
        path = wanted.pop()
        status, _, body = ask(shop, path)
        assert status == 200, path
        for href in links(body):
            target = href.partition("?")[0]
            if target.startswith(("/list/", "/product/")) and target not in seen:
                seen.add(target)
                wanted.append(target)
    assert seen == set(pages.page_paths())
    assert Counter(request.path for request in shop.requests) == Counter(pages.page_paths().keys())


def test_lists_show_twenty_products_and_no_price() -> None:
    for number in range(catalogue.LISTS):
        html = pages.list_page(number)
        assert len([href for href in links(html) if href.startswith("/product/")]) == 20
        assert "€" not in html


@pytest.mark.parametrize("day", [0, 1, 72, 400])
def test_pages_show_the_records_that_a_crawl_is_expected_to_store(day: int) -> None:
    expected = catalogue.expected_records(day)
    for number in (1, 2, 3, 138, 177, 500):
        soup = BeautifulSoup(pages.product_page(number, day), "html.parser")

        def text(selector: str, soup: BeautifulSoup = soup) -> str:
            found = soup.select(selector)
            assert len(found) == 1, selector
            return str(found[0].get_text())

        record = expected[text(".sku")]
        assert record["name"] == text("h1")
        assert record["description"] == text(".description")
        assert record["price"] == Decimal(re.sub(r"[€ ,]", "", text(".price")))
        assert record["in_stock"] is (soup.select(".stock")[0]["data-available"] == "true")
        structured = soup.select('script[type="application/ld+json"]')
        assert bool(structured) is (number % 3 == 0)
        if structured:
            data = yaml.safe_load(structured[0].get_text())
            assert (data["sku"], data["brand"]["name"]) == (record["sku"], record["brand"])
            assert Decimal(data["offers"]["price"]) == record["price"]


# The contract


def test_the_contract_names_the_shop_at_any_address() -> None:
    contract = yaml.safe_load(demo_contract_text("http://127.0.0.1:4711"))
    assert contract["source"] == DEMO_SOURCE
    assert contract["seeds"] == ["http://127.0.0.1:4711/list/0"]
    assert contract["scope"]["hosts"] == ["127.0.0.1:4711"]
    assert "8800" not in demo_contract_text("http://127.0.0.1:4711")


def test_the_bundled_contract_declares_the_fields_that_are_expected() -> None:
    contract = yaml.safe_load((demo_sources_folder() / "demo_shop.yaml").read_text(encoding="utf-8"))
    assert contract["seeds"] == ["http://127.0.0.1:8800/list/0"]
    (product,) = contract["records"]
    assert set(product["fields"]) == set(catalogue.expected_records(0)["DS-0001"])


def test_the_contract_is_valid_and_contradicts_nothing() -> None:
    (loaded,) = load_contracts([demo_sources_folder()]).values()
    assert loaded.contract.source == DEMO_SOURCE
    assert warnings(loaded.contract) == []


def test_the_contract_admits_every_page_once_and_no_cart() -> None:
    (loaded,) = load_contracts([demo_sources_folder()]).values()
    admission = Admission(loaded.contract)
    base = loaded.contract.seeds[0]
    hrefs = [href for path in ("/list/0", "/list/24") for href in links(pages.list_page(int(path[6:])))]
    admitted = [admission.admit(href, base, 1) for href in [*pages.page_paths(), *hrefs]]
    assert len({page.key for page in admitted if isinstance(page, PageUrl)}) == 525
    assert {page.rule for page in admitted if isinstance(page, Refusal)} >= {"scope.exclude /cart/**"}


def test_the_contract_extracts_exactly_the_expected_records() -> None:
    (loaded,) = load_contracts([demo_sources_folder()]).values()
    extractor, admission = Extractor(loaded.contract), Admission(loaded.contract)
    extracted = []
    for path, number in pages.page_paths().items():
        html = pages.list_page(int(path.removeprefix("/list/"))) if number is None else pages.product_page(number, 9)
        url = admission.admit(path, loaded.contract.seeds[0], 1)
        assert isinstance(url, PageUrl)
        document = parse(html.encode(), content_type="text/html; charset=utf-8", url=url.url)
        extraction = extractor.extract(document, url)
        assert judge(extraction, document, loaded.contract) is None
        extracted += [record.data for record in extraction.records]
    assert sorted(extracted) == sorted(map(canonical_json, catalogue.expected_records(9).values()))


# HTTP


def test_a_current_etag_is_answered_304_without_a_body_until_the_price_changes(shop: Shop) -> None:
    number = min(catalogue.changed_on(1))
    path = catalogue.product(number).path
    status, headers, body = ask(shop, path)
    assert (status, len(body)) == (200, int(headers["content-length"]))
    assert headers["etag"].startswith('"')
    again, repeated, nothing = ask(shop, path, headers={"If-None-Match": f'"other", W/{headers["etag"]}'})
    assert (again, repeated["etag"], nothing) == (304, headers["etag"], b"")
    shop.set_day(1)
    status, changed, other_body = ask(shop, path, headers={"If-None-Match": headers["etag"]})
    assert status == 200
    assert changed["etag"] != headers["etag"]
    assert other_body != body


def test_a_date_counts_only_where_there_is_no_etag(shop: Shop) -> None:
    number = min(catalogue.changed_on(1))
    path = catalogue.product(number).path
    since = ask(shop, path)[1]["last-modified"]
    assert ask(shop, path, headers={"If-Modified-Since": since})[0] == 304
    assert ask(shop, path, headers={"If-Modified-Since": since, "If-None-Match": '"other"'})[0] == 200
    assert ask(shop, path, headers={"If-Modified-Since": "Mon, 99 Foo 99999999999 00:00:00 GMT"})[0] == 200
    shop.set_day(1)
    assert ask(shop, path, headers={"If-Modified-Since": since})[0] == 200


def test_head_has_the_headers_of_get_and_no_body(shop: Shop) -> None:
    _, of_get, body = ask(shop, "/list/3")
    status, of_head, nothing = ask(shop, "/list/3", method="HEAD")
    assert (status, nothing) == (200, b"")
    assert of_head["content-length"] == of_get["content-length"] == str(len(body))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/cart/", 404),
        ("GET", "/list/25", 404),
        ("GET", "/list/00", 404),
        ("GET", "/product/1", 404),
        ("GET", "/list/0?utm_source=footer", 200),
        ("POST", "/list/0", 405),
    ],
)
def test_what_is_not_there_is_refused_and_logged(shop: Shop, method: str, path: str, status: int) -> None:
    assert ask(shop, path, method=method)[0] == status
    assert [(request.path, request.status) for request in shop.requests] == [(path, status)]


def test_robots_and_sitemap_name_everything_and_are_logged_apart(shop: Shop) -> None:
    robots = ask(shop, "/robots.txt")[2].decode()
    assert "Disallow: /cart/" in robots
    assert f"Sitemap: {shop.base_url}/sitemap.xml" in robots
    sitemap = ask(shop, "/sitemap.xml")[2].decode()
    assert re.findall(r"<loc>(.*?)</loc>", sitemap) == [shop.base_url + path for path in pages.page_paths()]
    assert shop.requests == []
    assert [request.path for request in shop.other_requests] == ["/robots.txt", "/sitemap.xml"]


def test_one_connection_serves_pipelined_requests_in_order(shop: Shop) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=10)
    connection.connect()
    try:
        asked = b"".join(b"HEAD /list/%d HTTP/1.1\r\nHost: shop\r\n\r\n" % number for number in range(3))
        connection.sock.sendall(asked[:40])
        connection.sock.sendall(asked[40:])
        received = b""
        while received.count(b"\r\n\r\n") < 3:
            received += connection.sock.recv(65_536)
    finally:
        connection.close()
    tags = re.findall(rb'ETag: ("[0-9a-f]+")', received)
    assert tags == [ask(shop, f"/list/{number}")[1]["etag"].encode() for number in range(3)]


def test_what_is_not_http_is_answered_400_and_hung_up_on(shop: Shop) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=10)
    connection.connect()
    try:
        connection.sock.sendall(b"hello\r\n\r\n")
        received = b""
        while data := connection.sock.recv(65_536):
            received += data
    finally:
        connection.close()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert shop.requests == []


def test_every_answer_waits_for_the_latency() -> None:
    with Shop.start(latency=0.05) as shop:
        began = time.monotonic()
        ask(shop, "/list/0")
        assert time.monotonic() - began >= 0.05


def test_a_stopped_shop_frees_its_port() -> None:
    with Shop.start() as shop:
        port = shop.port
        with pytest.raises(OSError, match="in use"):
            Shop.start(port=port)
    with Shop.start(port=port, latency=0) as again:
        assert ask(again, "/list/0")[0] == 200


# As a process


def start_process(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "crawl_pipeline.demo.shop", "--port", "0", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/list/0", ready)
    assert found is not None, ready
    return process, int(found[1])


def test_as_a_process_it_logs_each_request_at_once_and_ends_on_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "requests.log"
    process, port = start_process("--log", str(log), "--day", "3")
    with process:
        for path in ("/robots.txt", "/list/0", "/nowhere"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", path)
            connection.getresponse().read()
            connection.close()
        assert [(request.path, request.status) for request in read_log(log)] == [("/list/0", 200), ("/nowhere", 404)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_as_a_process_it_ends_when_the_pipe_to_its_stdin_closes() -> None:
    process, _ = start_process()
    with process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=10) == 0


def test_a_port_that_is_taken_is_said_in_a_sentence(shop: Shop) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "crawl_pipeline.demo.shop", "--port", str(shop.port)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert f"cannot be served on 127.0.0.1:{shop.port}" in ended.stderr
    assert "Traceback" not in ended.stderr
