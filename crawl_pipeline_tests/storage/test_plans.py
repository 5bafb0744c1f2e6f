"""What statements cost: all of them are valid, none walks through `urls`, and a claim does not care how many wait."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import crawl_pipeline.storage
from crawl_pipeline.domain.pages import CrawlId
from crawl_pipeline.storage import arguments, crawls, sources
from crawl_pipeline.storage.arguments import call
from crawl_pipeline.storage.database import Database
from crawl_pipeline_tests.storage.world import (
    HOLDER,
    World,
    claim,
    fill,
    finished,
    links,
    record,
    version,
)

STORAGE = Path(crawl_pipeline.storage.__file__).parent
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
LARGE = 100_000
CLAIM = "SELECT * FROM claim(%s::uuid, %s, %s, %s, %s, %s, %s::interval, %s)"
DIALECT = sa.make_url("postgresql+psycopg://").get_dialect()()


def statements_of(module: Path) -> Iterator[str]:
    """Every whole statement that stands in a module as text. What is a part of others is tried with them."""
    tree = ast.parse(module.read_text())
    names = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }

    def joined(node: ast.AST) -> str | None:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = joined(node.left), joined(node.right)
            return None if left is None or right is None else left + right
        return None

    inner = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp | ast.JoinedStr)
        for child in ast.walk(node)
        if child is not node
    }
    parts = {
        part.id
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        for part in (node.left, node.right)
        if isinstance(part, ast.Name)
    }
    inner |= {
        id(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in parts for t in node.targets)
    }
    for node in ast.walk(tree):
        if id(node) not in inner and isinstance(node, ast.BinOp | ast.Constant):
            text = joined(node)
            if text is not None and STATEMENT.match(text):
                yield text


def prepared(statement: str) -> str:
    """The statement with numbered parameters, as PREPARE wants it."""
    if "%s" in statement:
        numbers = iter(range(1, 100))
        return re.sub(r"%[sb]", lambda _: f"${next(numbers)}", statement)
    compiled = statement if "%(" in statement else str(sa.text(statement).compile(dialect=DIALECT))
    names: dict[str, int] = {}
    text = re.sub(r"%\((\w+)\)s", lambda m: f"${names.setdefault(m[1], len(names) + 1)}", compiled)
    return text.replace("%%", "%")


def test_every_statement_of_the_stores_prepares_on_the_schema(database: Database) -> None:
    found = [(module.name, text) for module in sorted(STORAGE.glob("*.py")) for text in statements_of(module)]
    assert len(found) > 40
    faults = []
    for number, (module, text) in enumerate(found):
        try:
            with database.raw() as connection:
                connection.execute(f"PREPARE statement_{number} AS {prepared(text)}".encode(), prepare=False)
        except Exception as error:
            faults.append(f"{module}: {' '.join(text.split())[:80]}: {str(error).splitlines()[0]}")
    assert faults == []


@pytest.mark.parametrize("function", sorted(arguments._TYPES))
def test_every_function_takes_the_arguments_that_its_caller_brings(database: Database, function: str) -> None:
    statement = arguments.call(function, len(arguments._TYPES[function].split()))
    numbers = iter(range(1, 100))
    text = re.sub(r"%[sb]", lambda _: f"${next(numbers)}", statement)
    with database.raw() as connection:
        connection.execute(f"PREPARE a_call AS {text}".encode(), prepare=False)


# A large table


@pytest.fixture
def large(database: Database) -> World:
    """A crawl of 100,000 due URLs at 100 hosts, with statistics."""
    world = World(database)
    source = world.source(slots=8)
    world.crawl(source)
    fill(database, source, urls=LARGE, hosts=100)
    return world


def sequential_scans(connection: sa.Connection, table: str) -> int:
    """Of this transaction, and of earlier ones that its session has not told the server: compare two readings."""
    return int(
        connection.execute(
            sa.text("SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_xact_user_tables WHERE relname = :t"), {"t": table}
        ).scalar_one()
    )


def test_no_function_walks_through_the_urls(large: World) -> None:
    """The statistics of the open transaction see into functions, where EXPLAIN does not."""
    source, crawl_id = large.rows("SELECT source_id, crawl_id FROM crawls")[0]
    frontier = large.frontier(source, crawl_id)
    lease, charged = claim(frontier, want=16, batch=8, share=1)
    pages = [
        finished(
            lease,
            url,
            version=version(url.url),
            records=(record(url.url),),
            links=links(*(f"http://h{n}.example/new/{n}" for n in range(20))),
        )
        for url in lease.urls
    ]
    values = [source, crawl_id, "w1", *frontier._arrays(pages)]
    calls: dict[str, tuple[str, list[Any]]] = {
        "claim": (CLAIM, [crawl_id, HOLDER.run_id, "w2", 64, 8, 2, "60 s", True]),
        "renew": ("SELECT renew(ARRAY[%s::uuid], '60 s')", [lease.token]),
        "complete": (arguments.call("complete", len(values)), values),
        "adopt": (
            arguments.call("adopt", 5),
            [charged.token, links("http://h1/adopted")[0].page.key, "http://h1/a", 1, None],
        ),
        "make_changed_due": (
            arguments.call("make_changed_due", 4),
            [crawl_id, "1 h", [url.key for url in lease.urls], [datetime.now(UTC)] * len(lease.urls)],
        ),
        "sitemap_count": ("SELECT count(*) FROM urls WHERE source_id = %s AND is_sitemap", [source]),
        "charge": ("SELECT charge(%s, %s, false)", [charged.token, charged.urls[0].key]),
        "release": ("SELECT release(ARRAY[%s::uuid])", [charged.token]),
        "expire": ("UPDATE leases SET expires_at = now() - interval '1 s'", []),
        "requeue_expired": ("SELECT requeue_expired()", []),
        "finished": ("SELECT finished(%s)", [crawl_id]),
        "throttle_host": ("SELECT throttle_host(1, '1 s', '1 h')", []),
        "cancel_queued": ("SELECT cancel_queued(%s, 'deadline', 100)", [source]),
        "reopen_cancelled": ("SELECT reopen_cancelled(%s, '{deadline}', 50)", [source]),
        "reopen_denied": ("SELECT reopen_denied('http://h1.example', NULL, 50)", []),
        "make_due": ("SELECT make_due(%s, now(), NULL, 100)", [source]),
        "release_quarantined": ("SELECT release_quarantined(%s, NULL, NULL, 10)", [source]),
    }
    scans = {}
    for name, (statement, values) in calls.items():
        with large.database.connection() as connection:
            before = sequential_scans(connection, "urls")
            connection.exec_driver_sql(statement, tuple(values))
            scans[name] = sequential_scans(connection, "urls") - before
    assert scans == dict.fromkeys(calls, 0)


def test_status_of_a_crawl_walks_through_no_urls(large: World) -> None:
    source, crawl_id = large.rows("SELECT source_id, crawl_id FROM crawls")[0]
    crawls.fold_counters(large.database)
    with large.database.connection() as connection:
        before = sequential_scans(connection, "urls")
        assert crawls.counts(connection, source)["queued"] == LARGE
        crawls.counts(connection, source, crawl_id)
        crawls.next_due(connection, source)
        assert sequential_scans(connection, "urls") - before == 0
    assert crawls.sources_due(large.database) == []


def blocks_of_a_claim(world: World) -> int:
    """Pages of the database that a claim of 64 URLs at 8 hosts touches, functions included."""
    crawl_id = world.scalar("SELECT crawl_id FROM crawls")
    touched: list[int] = []
    for number in range(4):
        with world.database.connection() as connection:
            explained = connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {CLAIM}",
                (crawl_id, HOLDER.run_id, f"w{number}", 64, 8, 8, "60 s", True),
            ).scalar_one()
        plan = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
        assert plan["Actual Rows"] == 64
        touched.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return min(touched)


def test_claim_touches_as_many_pages_of_200_000_urls_as_of_10_000(database: Database) -> None:
    world = World(database)
    source = world.source(slots=8)
    world.crawl(source)
    fill(database, source, urls=10_000, hosts=50)
    small = blocks_of_a_claim(world)
    fill(database, source, urls=200_000, hosts=50)
    assert world.scalar("SELECT count(*) FROM urls") == 210_000
    world.execute("DELETE FROM leases")
    world.wake_hosts()
    assert blocks_of_a_claim(world) < small * 1.5 + 50
    assert sources.BATCH <= 5000


def rows_read_by_a_merge(world: World, source: int, crawl: CrawlId, url: str) -> int:
    """Claims of records that are read while a further page claims the one that all share."""
    statement = """
        SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::int FROM pg_stat_xact_user_tables
         WHERE relname = 'record_pages'
    """
    with world.database.connection() as connection:
        before = int(connection.exec_driver_sql(statement).scalar_one())
        connection.exec_driver_sql(
            call("merge_records", 12), world.merge_arguments(source, crawl, {url: [record("1")]})
        )
        return int(connection.exec_driver_sql(statement).scalar_one()) - before


def test_record_on_many_pages_costs_a_further_page_no_more(database: Database) -> None:
    world = World(database)
    source = world.source()
    crawl = world.crawl(source)
    world.merge(source, crawl, {f"http://a/{n}": [record("1")] for n in range(10)})
    few = rows_read_by_a_merge(world, source, crawl, "http://a/further")
    world.merge(source, crawl, {f"http://b/{n}": [record("1")] for n in range(2_000)})
    assert rows_read_by_a_merge(world, source, crawl, "http://a/last") < few + 100
