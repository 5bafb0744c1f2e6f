"""`records` and `pages`: every column with its type in every format, in one order, read as a stream."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.storage import exports, reports
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.exports import Column, Kind
from crawl_pipeline_tests.storage.commanding import Desk
from crawl_pipeline_tests.storage.filled import ALL_FIELDS, CONTRACT, SITE, FilledSource, fill

FIELDS = ["sku", "price", "in_stock", "rating", "reviews", "since", "image"]
OURS = ["record_id", "url", "first_seen_at", "last_changed_at", "missing_since"]
EMPTY = {**dict.fromkeys(FIELDS), "sku": "A-2"}


def lines(text: str) -> list[dict[str, Any]]:
    """Parsed JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def filled(database: Database) -> FilledSource:
    """Two products: one with every field, one with its key only."""
    filled = fill(database)
    filled.accept_products(EMPTY, ALL_FIELDS)
    return filled


def test_jsonl_has_every_column_in_declared_order_with_its_type(desk: Desk, filled: FilledSource) -> None:
    first, second = lines(desk.run("records", "shop", "--format", "jsonl"))
    assert list(first) == list(second) == [*FIELDS, *OURS]
    assert {name: first[name] for name in FIELDS} == dict(ALL_FIELDS)
    assert {name: second[name] for name in FIELDS} == EMPTY
    assert first["url"] == f"{SITE}/product/A-1"
    assert first["missing_since"] is None
    seen = datetime.fromisoformat(first["first_seen_at"])
    assert first["first_seen_at"].endswith("Z")
    assert abs(datetime.now(UTC) - seen) < timedelta(minutes=5)


def test_csv_keeps_decimals_exact_and_leaves_nothing_empty_but_nulls(desk: Desk, filled: FilledSource) -> None:
    first, second = csv.DictReader(io.StringIO(desk.run("records", "shop", "--format", "csv")))
    values = ["A-1", "19.90", "true", "4.5", "12", "2024-02-29", f"{SITE}/a.jpg"]
    assert [first[name] for name in FIELDS] == values
    assert [second[name] for name in FIELDS] == ["A-2", "", "", "", "", "", ""]


def test_parquet_columns_have_the_declared_types(desk: Desk, filled: FilledSource) -> None:
    file = desk.folder / "records.parquet"
    desk.run("records", "shop", "--output", file)
    table = pq.read_table(file)
    time = pa.timestamp("us", tz="UTC")
    types = [pa.string(), pa.decimal128(38, 9), pa.bool_(), pa.float64(), pa.int64(), pa.date32(), pa.string()]
    assert list(zip(table.schema.names, table.schema.types, strict=True)) == list(
        zip([*FIELDS, *OURS], [*types, pa.string(), pa.string(), time, time, time], strict=True)
    )
    first, second = table.to_pylist()
    assert [first[name] for name in FIELDS] == [
        "A-1", Decimal("19.90"), True, 4.5, 12, date(2024, 2, 29), f"{SITE}/a.jpg",
    ]  # fmt: skip
    assert [second[name] for name in FIELDS] == ["A-2", None, None, None, None, None, None]


@pytest.mark.parametrize("crawled", [False, True])
def test_a_source_without_records_exports_all_columns(desk: Desk, database: Database, crawled: bool) -> None:
    if crawled:
        fill(database)
    header = ",".join([*FIELDS, *OURS]) + "\n"
    assert desk.run("records", "shop", "--format", "csv") == header
    desk.run("records", "shop", "--output", desk.folder / "empty.parquet")
    table = pq.read_table(desk.folder / "empty.parquet")
    assert (table.num_rows, table.schema.names) == (0, [*FIELDS, *OURS])
    assert desk.run("records", "shop", "--format", "jsonl") == ""
    assert desk.run("records", "shop") == "0 product records\n"


def test_parquet_goes_to_stdout_too(desk: Desk, filled: FilledSource) -> None:
    result = desk.try_("records", "shop", "--format", "parquet")
    assert pq.read_table(io.BytesIO(result.stdout_bytes)).num_rows == 2


def test_records_come_in_the_byte_order_of_their_keys(desk: Desk, database: Database) -> None:
    filled = fill(database)
    skus = ["b", "a", "B", "ä", "10", "9", "a b", "_"]
    filled.accept_products(*({**EMPTY, "sku": sku} for sku in skus))
    filled.execute("ANALYZE records")  # now a scan would be cheaper than the index, and come in the order of insertion
    found = [line["sku"] for line in lines(desk.run("records", "shop", "--format", "jsonl"))]
    assert found == sorted(skus, key=lambda sku: json.dumps([sku], ensure_ascii=False).encode())


def test_gone_records_are_left_out_and_missing_ones_say_since_when(desk: Desk, filled: FilledSource) -> None:
    filled.execute("UPDATE records SET gone_at = now() WHERE record_key = '[\"A-1\"]'")
    filled.execute("UPDATE records SET missing_since = now() WHERE record_key = '[\"A-2\"]'")
    (line,) = lines(desk.run("records", "shop", "--format", "jsonl"))
    assert line["sku"] == "A-2"
    assert line["missing_since"] is not None


def test_a_field_keeps_its_name_where_it_is_one_of_ours() -> None:
    fields = [Column(name=name, kind=Kind.TEXT) for name in ("url", "record_id", "crawl_url")]
    names = [column.name for column in exports.record_columns(fields)]
    ours = ["crawl_record_id", "crawl_crawl_url", "first_seen_at", "last_changed_at", "missing_since"]
    assert names == ["url", "record_id", "crawl_url", *ours]


def test_a_decimal_that_needs_it_makes_its_column_wide(desk: Desk, database: Database) -> None:
    filled = fill(database)
    precise = "0.12345678901234567890123456789"
    filled.accept_products({**EMPTY, "price": precise}, {**EMPTY, "sku": "A-3", "price": "7"})
    desk.run("records", "shop", "--output", desk.folder / "wide.parquet")
    table = pq.read_table(desk.folder / "wide.parquet")
    assert table.schema.field("price").type == pa.decimal256(76, 38)
    assert table.column("price").to_pylist() == [Decimal(precise), Decimal(7)]


def test_what_older_rules_left_is_exported_as_text_and_refused_as_parquet(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.accept_products({**EMPTY, "price": "about 12"}, {**EMPTY, "sku": "A-3", "reviews": 10**30})
    assert [line["price"] for line in lines(desk.run("records", "shop", "--format", "jsonl"))] == ["about 12", None]
    sentence = desk.refused("records", "shop", "--output", desk.folder / "no.parquet", exit_code=1)
    assert '"price" of ' in sentence
    assert "holds 'about 12', which no Parquet column of decimal can" in sentence
    assert list(desk.folder.glob("*no.parquet*")) == []
    filled.execute("UPDATE records SET gone_at = now() WHERE record_key = '[\"A-2\"]'")
    assert '"reviews" of ' in desk.refused("records", "shop", "--output", desk.folder / "no.parquet", exit_code=1)


def test_cells_that_look_like_formulas_are_not_changed(desk: Desk, database: Database) -> None:
    fill(database).accept_products({**EMPTY, "image": '=HYPERLINK("x")'})
    (row,) = csv.DictReader(io.StringIO(desk.run("records", "shop", "--format", "csv")))
    assert row["image"] == '=HYPERLINK("x")'


def test_fields_that_no_contract_declares_take_the_kind_that_fits_all_values(desk: Desk, database: Database) -> None:
    rule = {"type": "offer", "match": ["/product/**"], "key": ["sku"], "python": "team.offers:offers"}
    desk.write_contract({**CONTRACT, "records": [rule]})
    filled = fill(database, records=[rule])
    filled.discover("/product/1")
    filled.claim()
    rows = [
        {"sku": "1", "n": 1, "f": 1, "mixed": "x", "tags": ["a"], "ok": True, "none": None},
        {"sku": "2", "n": 2, "f": 1.5, "mixed": 5, "tags": [], "ok": None},
    ]
    filled.complete("/product/1", records=rows, record_type="offer")
    desk.run("records", "shop", "--output", desk.folder / "offers.parquet")
    table = pq.read_table(desk.folder / "offers.parquet")
    types = {name: str(table.schema.field(name).type) for name in table.schema.names[:6]}
    text = "string"
    assert types == {"sku": text, "f": "double", "mixed": text, "n": "int64", "ok": "bool", "tags": text}
    assert next(iter(types)) == "sku"
    assert table.column("mixed").to_pylist() == ['"x"', "5"]
    assert table.column("tags").to_pylist() == ['["a"]', "[]"]


def test_of_several_record_types_a_file_holds_the_one_that_is_named(desk: Desk, database: Database) -> None:
    shop = {"type": "shop", "match": ["/list/**"], "key": ["name"], "fields": {"name": {"css": "h1", "required": True}}}
    rules = [*CONTRACT["records"], shop]
    desk.write_contract({**CONTRACT, "records": rules})
    fill(database, records=rules).accept_products(EMPTY)
    sentence = desk.refused("records", "shop", "--format", "csv")
    assert sentence == 'crawl-pipeline: "shop" has the record types product, shop; choose one with --type'
    assert len(lines(desk.run("records", "shop", "--type", "product", "--format", "jsonl"))) == 1
    assert '"shop" has no record type "prodct"; there is product, shop' in desk.refused(
        "records", "shop", "--type", "prodct"
    )
    table = desk.run("records", "shop")
    assert "1 product record\n" in table
    assert "0 shop records\n" in table


def test_a_table_shows_the_first_rows_and_says_how_many_there_are(desk: Desk, database: Database) -> None:
    fill(database).accept_products(*({**EMPTY, "sku": f"A-{n:03}"} for n in range(30)))
    text = desk.run("records", "shop")
    assert text.count("A-0") == 2 * 20  # in the SKU and in the URL
    assert text.splitlines()[-1].startswith("30 product records, the first 20 shown")
    assert desk.run("records", "shop", "--limit", "30").splitlines()[-1] == "30 product records"
    assert len(lines(desk.run("records", "shop", "--format", "jsonl", "--limit", "3"))) == 3


def test_records_are_read_as_a_stream(database: Database) -> None:
    """Fails where all rows are held at once: 20,000 records of 2 kB are 40 MB."""
    filled = fill(database)
    filled.execute(
        """
        INSERT INTO records (record_id, source_id, record_type, record_key, data, data_hash, url_key, version_id,
                             first_seen_at, last_changed_at)
        SELECT gen_random_uuid(), :s, 'product', jsonb_build_array(n)::text,
               jsonb_build_object('sku', repeat('x', 2000)), 'x', gen_random_uuid(), 1, now(), now()
          FROM generate_series(1, 20000) n
        """
    )
    columns = exports.record_columns([Column(name="sku", kind=Kind.TEXT)])
    with reports.snapshot(database) as connection:
        tracemalloc.start()
        try:
            count = sum(1 for _ in exports.records(connection, filled.source_id, "product", columns))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert count == 20_000
    assert peak < 12_000_000


def test_pages_are_those_that_ever_met_the_contract_with_what_became_of_them(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.discover("/product/1", "/product/2", "/product/3", "/product/never")
    filled.discover("/list/map", is_sitemap=True)
    filled.claim()
    filled.complete("/product/1", title="One", text="first")
    filled.complete("/product/2", due_in=timedelta(0))
    filled.complete("/product/3", UrlState.REJECTED, reason="content_contract")
    filled.complete("/list/map", is_sitemap=True)
    filled.close()
    filled.open()
    filled.claim()
    filled.complete("/product/2", UrlState.REJECTED, reason="not_found", status=404)
    one, two = lines(desk.run("pages", "shop", "--format", "jsonl"))
    assert list(one) == [column.name for column in exports.PAGE_COLUMNS]
    assert (one["url"], one["state"], one["title"]) == (f"{SITE}/product/1", "accepted", "One")
    assert (one["markdown"], one["version"], one["status"]) == ("# first", 1, 200)
    assert (two["url"], two["state"], two["status"]) == (f"{SITE}/product/2", "rejected", 404)
    assert two["last_fetched_at"] > two["accepted_at"]


def test_pages_of_a_crawl_are_what_that_crawl_saw(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.discover("/product/1", "/product/2")
    filled.claim()
    filled.complete("/product/1", text="old", due_in=timedelta(0))
    filled.complete("/product/2")
    filled.close()
    first = filled.crawl_id
    filled.open()
    filled.claim()
    filled.complete("/product/1", text="new")
    old = lines(desk.run("pages", first, "--format", "jsonl"))
    assert [(page["markdown"], page["version"]) for page in old] == [("# old", 1), ("# /product/2", 1)]
    (new,) = lines(desk.run("pages", filled.crawl_id, "--format", "jsonl"))
    assert (new["markdown"], new["version"]) == ("# new", 2)
    assert desk.run("pages", first).splitlines()[-1] == "2 pages"


def test_a_table_of_pages_leaves_the_markdown_to_files(desk: Desk, database: Database) -> None:
    filled = fill(database)
    filled.discover("/product/1")
    filled.claim()
    filled.complete("/product/1", title="One\x1b[31m\nline")
    header, row, count = desk.run("pages", "shop").splitlines()
    assert "markdown" not in header
    assert "One\\u001b[31m line" in row
    assert count == "1 page"


def test_the_ending_of_the_file_says_the_format(desk: Desk, filled: FilledSource, tmp_path: Path) -> None:
    result = desk.try_("records", "shop", "--output", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().startswith("sku,price")
    assert result.stderr == f"wrote 2 product records to {tmp_path / 'out.csv'}\n"
    desk.run("records", "shop", "--output", tmp_path / "out.txt", "--format", "table")
    assert (tmp_path / "out.txt").read_text().splitlines()[-1] == "2 product records"
    assert "names no format" in desk.refused("records", "shop", "--output", tmp_path / "out.txt")
