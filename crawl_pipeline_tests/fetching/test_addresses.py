"""The address classifier, and the rule at connect time, seen from the server's side."""

from __future__ import annotations

import json
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import ada_url
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.pages import FetchFailure, FetchRequest
from crawl_pipeline.fetching.addresses import is_global_address, permitted
from crawl_pipeline.fetching.transport import Transport
from crawl_pipeline_tests import wait_until
from crawl_pipeline_tests.conftest import Score
from crawl_pipeline_tests.fetching.conftest import Fetch
from crawl_pipeline_tests.fetching.driving import LOOPBACK, collect, fetch_one
from crawl_pipeline_tests.fetching.vicious_site import PAGE, ViciousSite

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpora" / "ssrf" / "ssrf_cases.jsonl"


@pytest.mark.parametrize(
    ("ip", "is_global"),
    [
        ("8.8.8.8", True),
        ("100.63.255.255", True),
        ("172.32.0.1", True),
        ("2606:4700:4700::1111", True),
        ("2001:200::1", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::8.8.8.8", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("192.0.0.9", False),
        ("192.88.99.1", False),
        ("198.19.255.255", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::7f00:1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("64:ff9b::10.0.0.1", False),
        ("64:ff9b:1::8.8.8.8", False),
        ("2001::1", False),
        ("2001:db8::1", False),
        ("2002:808:808::1", False),
        ("3fff::1", False),
        ("4000::1", False),
        ("5f00::1", False),
        ("fc00::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("not an address", False),
        ("", False),
    ],
)
def test_only_public_addresses_are_global(ip: str, is_global: bool) -> None:
    assert is_global_address(ip) is is_global


@given(st.ip_addresses())
def test_whatever_the_standard_library_calls_private_is_not_global(address: Any) -> None:
    if address.is_private or address.is_multicast or address.is_reserved or address.is_loopback:
        mapped = getattr(address, "ipv4_mapped", None)
        assert not is_global_address(str(address)) or (mapped and mapped.is_global) or _is_nat64(address)


def _is_nat64(address: Any) -> bool:
    return address.version == 6 and int(address) >> 32 == int(ip_address("64:ff9b::")) >> 32


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    assert is_global_address(text) in (True, False)


def test_a_network_permits_what_it_contains_also_embedded() -> None:
    assert permitted("10.1.2.3", ("10.0.0.0/8",))
    assert permitted("::ffff:10.1.2.3", ("10.0.0.0/8",))
    assert permitted("fd00::1", ("10.0.0.0/8", "fd00::/8"))
    assert permitted("10.1.2.3", ("10.1.2.99/24",))
    assert not permitted("11.1.2.3", ("10.0.0.0/8",)) or is_global_address("11.1.2.3")
    assert not permitted("127.0.0.1", ("10.0.0.0/8",))
    assert not permitted("nonsense", ("0.0.0.0/0",))
    with pytest.raises(ValueError, match="does not appear to be"):
        permitted("127.0.0.1", ("ten/8",))


@pytest.mark.conformance
def test_no_published_spelling_of_an_inner_address_passes(score: Score) -> None:
    if not CORPUS.exists():
        pytest.skip("../shared/corpora/ssrf is absent: the published address cases were not run")
    cases = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    let_through, blocked = [], []
    for case in cases:
        host = _parsed_host(case)
        ip = host if host and _is_address(host) else case["resolves_to"] if host else None
        passes = ip is not None and permitted(ip, ())
        if case["must_block"] is True and passes:
            let_through.append(case)
        if case["must_block"] is False and not passes:
            blocked.append(case)
    assert len(cases) == 304
    assert (let_through, blocked) == ([], [])
    score("ssrf: address spellings", len(cases), 304)


def _parsed_host(case: dict[str, Any]) -> str | None:
    """The host as the crawl's URL parser reads it, without brackets; None: no such URL."""
    host = case["host"]
    text = host if case.get("form") == "url" else f"http://{f'[{host}]' if host.count(':') > 1 else host}/"
    try:
        url = ada_url.URL(text, base=case["base"]) if case.get("base") else ada_url.URL(text)
    except ValueError:
        return None
    return str(url.hostname).strip("[]")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


# At connect time


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_inner_address_is_refused_before_a_connection_is_made(fetch: Fetch, site: ViciousSite, host: str) -> None:
    exchange = fetch(site.url("/page", host=host), allow_networks=())
    assert exchange.failure is FetchFailure.ADDRESS_REFUSED
    assert "127.0.0.1" in (exchange.detail or "")
    assert "fetch.allow_networks" in (exchange.detail or "")
    assert (site.connections, site.arrivals) == (0, [])


@pytest.mark.parametrize("host", ["[::ffff:127.0.0.1]", "127.1", "0x7f.1", "2130706433"])
def test_no_spelling_of_the_loopback_gets_through(fetch: Fetch, site: ViciousSite, host: str) -> None:
    exchange = fetch(site.url("/page", host=host), allow_networks=())
    assert exchange.failure in (FetchFailure.ADDRESS_REFUSED, FetchFailure.CONNECTION)
    assert site.connections == 0


def test_of_several_addresses_a_permitted_one_is_used(fetch: Fetch, site: ViciousSite) -> None:
    exchange = fetch(site.url("/page", host="localhost"), allow_networks=("127.0.0.0/8",))
    assert (exchange.body, exchange.address) == (PAGE, "127.0.0.1")


def test_a_permitted_address_that_does_not_answer_is_a_connection_failure(fetch: Fetch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    exchange = fetch(f"http://localhost:{port}/", allow_networks=("127.0.0.0/8",))
    assert exchange.failure is FetchFailure.CONNECTION


def test_a_connection_kept_for_one_rule_never_serves_a_narrower_one(transport: Transport, site: ViciousSite) -> None:
    """Fails when connections are pooled without regard to `allow_networks`."""
    url = site.url("/page")
    assert fetch_one(transport, FetchRequest(url=url, allow_networks=LOOPBACK)).body == PAGE
    refused = fetch_one(transport, FetchRequest(url=url, allow_networks=()))
    elsewhere = fetch_one(transport, FetchRequest(url=url, allow_networks=("10.0.0.0/8",)))
    assert {refused.failure, elsewhere.failure} == {FetchFailure.ADDRESS_REFUSED}
    assert fetch_one(transport, FetchRequest(url=url, allow_networks=LOOPBACK)).body == PAGE
    assert [arrival.connection for arrival in site.arrivals] == [1, 1]


def test_rules_side_by_side_keep_apart(transport: Transport, site: ViciousSite) -> None:
    for n in range(20):
        rule = LOOPBACK if n % 2 else ()
        transport.start(FetchRequest(url=site.url(f"/{n}"), allow_networks=rule), n)
    found = collect(transport, 20)
    assert {n for n in found if found[n].failure is FetchFailure.ADDRESS_REFUSED} == set(range(0, 20, 2))
    assert len(site.arrivals) == 10


def test_many_rules_do_not_pile_up_connections(transport: Transport, site: ViciousSite) -> None:
    for n in range(1, 30):
        rule = (f"127.0.0.0/{n % 24 + 8}", f"10.{n}.0.0/16")
        assert fetch_one(transport, FetchRequest(url=site.url("/page"), allow_networks=rule)).failure is None
    wait_until(lambda: site.open_connections <= 10)


def test_an_unusable_rule_is_refused_at_the_start(transport: Transport, site: ViciousSite) -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        transport.start(FetchRequest(url=site.url("/page"), allow_networks=("loopback",)), 1)
    assert transport.in_flight == 0
