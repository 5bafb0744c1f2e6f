"""What each stage of a page costs by itself: CPU in µs, in one process and in the database's backend.

The sum is the limit of this design: a crawl costs that and what its stages do to each other (one interpreter lock,
shared caches), which is why the speed table's figure is higher.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import yaml
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from crawl_pipeline.domain.contract import Contract, parse_contract
from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.pages import ClaimedUrl, CompletedPage, Exchange, FetchRequest, Lease, LeaseToken, PageUrl
from crawl_pipeline.domain.scope import Admission
from crawl_pipeline.domain.urls import Canonicalizer
from crawl_pipeline.fetching.transport import make_transport
from crawl_pipeline.parsing.content import markdown
from crawl_pipeline.parsing.document import Document, parse
from crawl_pipeline.parsing.extraction import Extractor
from crawl_pipeline.parsing.links import links
from crawl_pipeline.pipeline.decide import Decider, Verdict, log_of
from crawl_pipeline.pipeline.known_links import KnownLinks
from crawl_pipeline.pipeline.reading import PageReader, body_hash, with_content
from crawl_pipeline.storage import arguments
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.bench.frontier import Backend, server
from crawl_pipeline_tests.bench.origin import Origin
from crawl_pipeline_tests.bench.ours import link_site_contract
from crawl_pipeline_tests.bench.sites import LinkSite
from crawl_pipeline_tests.storage.world import World, claim

PAGES = 400
GROUP = 16  # pages of a commit, as a worker of 32 slots makes them
SLOTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage's CPU for one page, and where it is spent."""

    name: str
    microseconds: float
    where: str


def measure_stages(pages: int = PAGES) -> list[Stage]:
    """Every stage over the same pages of the link-heavy site, whose links are known but for one a page."""
    site = LinkSite(pages=pages)
    with Origin(site) as origin:
        contract = parse_contract(yaml.safe_load(link_site_contract(origin.base_url, pages, SLOTS)), file="bench")
        fetched = _Fetched(contract, [origin.base_url + site.path(number) for number in range(pages)])
        fetch = _per_page(fetched.run, pages)
    return [
        Stage(name="fetch", microseconds=fetch, where="worker"),
        *_reading_stages(contract, fetched.exchanges),
        *_commit_stages(contract, fetched.exchanges),
    ]


def _per_page(work: Callable[[], object], pages: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / pages * 1e6


class _Fetched:
    """All pages by libcurl, as many at once as there are slots."""

    def __init__(self, contract: Contract, urls: Sequence[str]) -> None:
        self._transport = make_transport("libcurl", max_in_flight=SLOTS)
        networks = tuple(str(network) for network in contract.fetch.allow_networks)
        self._requests = [FetchRequest(url=url, allow_networks=networks) for url in urls]
        self.exchanges: list[Exchange] = []

    def run(self) -> None:
        left = list(self._requests)
        while left or self._transport.in_flight:
            while left and self._transport.in_flight < SLOTS:
                request = left.pop()
                self._transport.start(request, request.url)
            self.exchanges += [exchange for _, exchange in self._transport.poll(1.0)]
        self._transport.close()


def _reading_stages(contract: Contract, exchanges: Sequence[Exchange]) -> list[Stage]:
    extractor, admission = Extractor(contract), Admission(contract)
    pages = [_page(contract, exchange.request.url) for exchange in exchanges]

    def parsed(exchange: Exchange) -> Document:
        return parse(exchange.body, content_type=exchange.header("content-type"), url=exchange.request.url)

    documents = [parsed(exchange) for exchange in exchanges]
    hrefs = [links(document, follow_nofollow=False, limit=10_000)[0] for document in documents]
    found = list(zip(hrefs, documents, strict=True))

    def admit() -> None:
        for texts, document in found:
            admission.admit_all(texts, document.base_url, 1)

    admit()  # a crawl meets most links again and again
    stages: dict[str, Callable[[], object]] = {
        "parse": lambda: [parsed(exchange) for exchange in exchanges],
        "extract and hash": lambda: [extractor.extract(*both) for both in zip(documents, pages, strict=True)],
        "find links": lambda: [links(document, follow_nofollow=False, limit=10_000) for document in documents],
        "admit links": admit,
        "Markdown": lambda: [markdown(document) for document in documents],
    }
    return [
        Stage(name=name, microseconds=_per_page(work, len(exchanges)), where="worker") for name, work in stages.items()
    ]


def _commit_stages(contract: Contract, exchanges: Sequence[Exchange]) -> list[Stage]:
    with server() as attached:
        database = Database.connect(attached.url("crawl"))
        world = World(database)
        source_id = world.source(slots=SLOTS)
        crawl_id = world.crawl(source_id)
        frontier = world.frontier(source_id, crawl_id, "w")
        world.seed(source_id, *(exchange.request.url for exchange in exchanges))
        with database.engine.connect() as connection:
            backend = Backend(connection)
            claiming = _claims(world, backend, crawl_id)
            leases = claim(frontier, want=len(exchanges), batch=len(exchanges), share=SLOTS, is_idle=False)
            pages = _completed(contract, exchanges, [(lease, claimed) for lease in leases for claimed in lease.urls])
            groups = [pages[at : at + GROUP] for at in range(0, len(pages), GROUP)]
            calls = [[source_id, crawl_id, "w", *frontier._arrays(group)] for group in groups]
            statement = arguments.call("complete", len(calls[0]))
            stages = {
                "compress and pack": lambda: [frontier._arrays(group) for group in groups],
                "write parameters": lambda: [_write(statement, values) for values in calls],
            }
            worker = {name: _per_page(work, len(pages)) for name, work in stages.items()}
            spent = sum(backend.milliseconds(partial(backend.run, statement, values)) for values in calls)
        database.close()
    return [
        *(Stage(name=name, microseconds=cost, where="worker") for name, cost in worker.items()),
        Stage(name="claim", microseconds=claiming, where="database"),
        Stage(name="commit", microseconds=spent / len(pages) * 1000, where="database"),
    ]


def _write(statement: str, values: Sequence[object]) -> PostgresQuery:
    query = PostgresQuery(Transformer())
    query.convert(statement, values)
    return query


def _claims(world: World, backend: Backend, crawl_id: object) -> float:
    """A page's part of a claim that takes 64 of one host."""
    statement = "SELECT * FROM claim(%s::uuid, 'run-1', 'x', 64, 64, 8, interval '60 s', false)"
    spent, claims = 0.0, 10
    for _ in range(claims):
        spent += backend.milliseconds(partial(backend.run, statement, [crawl_id]))
        backend.run("SELECT release_worker('x')", [])
        world.execute("UPDATE queues SET not_before = 'epoch' WHERE not_before > 'epoch'")
    return spent / claims / 64 * 1000


def _completed(
    contract: Contract, exchanges: Sequence[Exchange], claims: Sequence[tuple[Lease, ClaimedUrl]]
) -> list[CompletedPage]:
    reader, known, decider = PageReader(contract, None), KnownLinks(), Decider(contract, random.Random(1))
    by_url = {exchange.request.url: exchange for exchange in exchanges}
    done = []
    for lease, claimed in claims:
        exchange, page = by_url[claimed.url], _page(contract, claimed.url)
        kind, hashed = exchange.header("content-type"), body_hash(exchange.body)
        reading = reader.read(exchange.body, kind, page.url, page, LeaseToken(UUID(int=0)), 0, ())
        new = known.unknown(reading.links[:1], 1)
        known.remember(new)
        decided = decider.decide(
            lease,
            claimed,
            Verdict(state=UrlState.ACCEPTED),
            now=exchange.started_at,
            path="/p/1",
            fetches=(log_of(exchange, hashed),),
            host_failures=0,
        )
        done.append(
            with_content(
                decided,
                reading,
                exchange,
                hashed=hashed,
                known=None,
                is_back=False,
                extractor_version=reader.extractor_version,
                client="libcurl",
                links=new,
            )
        )
    return done


def _page(contract: Contract, url: str) -> PageUrl:
    page = Canonicalizer(contract.urls).page_url(url)
    assert isinstance(page, PageUrl)
    return page
