"""Records and pages as DataFrames: typed columns, exact decimals, nulls that stay nulls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pandas as pd
import pytest
import sqlalchemy as sa

from crawl_pipeline.defs.metadata import preview
from crawl_pipeline.errors import UnknownSource, UsageError
from crawl_pipeline.storage.database import Database
from crawl_pipeline.storage.frames import pages_frame, records_frame
from crawl_pipeline_tests.storage.filled import ALL_FIELDS, SITE, fill

TYPES = {
    "sku": "string",
    "image": "string",
    "in_stock": "boolean",
    "price": "object",
    "rating": "Float64",
    "reviews": "Int64",
    "since": "datetime64[s]",
    "record_id": "string",
    "url": "string",
    "first_seen_at": "datetime64[us, UTC]",
    "last_changed_at": "datetime64[us, UTC]",
    "missing_since": "datetime64[us, UTC]",
}
KEY_ONLY = {**dict.fromkeys(ALL_FIELDS), "sku": "A-2"}


def test_every_field_is_a_column_of_its_type_and_nulls_stay_nulls(database: Database) -> None:
    fill(database).accept_products(KEY_ONLY, ALL_FIELDS)
    frame = records_frame(database, "shop")
    assert [(name, str(dtype)) for name, dtype in frame.dtypes.items()] == list(TYPES.items())
    first, second = frame.to_dict("records")
    assert (first["sku"], first["price"], first["in_stock"]) == ("A-1", Decimal("19.90"), True)
    assert (first["rating"], first["reviews"], first["since"]) == (4.5, 12, pd.Timestamp("2024-02-29"))
    assert (first["image"], first["url"]) == (ALL_FIELDS["image"], f"{SITE}/product/A-1")
    assert abs(first["first_seen_at"] - datetime.now(UTC)) < timedelta(minutes=5)
    assert second["sku"] == "A-2"
    assert frame.loc[1, list(ALL_FIELDS)].drop("sku").isna().all()
    assert frame["price"].dropna().sum() == Decimal("19.90")


def test_limit_and_type_choose_rows_and_a_frame_without_rows_has_its_types(database: Database) -> None:
    filled = fill(database)
    assert {name: str(dtype) for name, dtype in records_frame(database, "shop").dtypes.items()} == TYPES
    filled.accept_products(KEY_ONLY, ALL_FIELDS)
    assert list(records_frame(database, "shop", "product", limit=1)["sku"]) == ["A-1"]


def test_values_that_a_changed_contract_does_not_type_are_kept_as_stored(database: Database) -> None:
    fill(database).accept_products(ALL_FIELDS, {**ALL_FIELDS, "sku": "A-2"})
    with database.connection() as connection:
        connection.execute(
            sa.text("UPDATE records SET data = data || '{\"reviews\": \"many\"}' WHERE data ->> 'sku' = 'A-2'")
        )
    frame = records_frame(database, "shop")
    assert list(frame["reviews"]) == [12, "many"]
    assert str(frame["rating"].dtype) == "Float64"


def test_pages_are_a_frame_by_url(database: Database) -> None:
    fill(database).accept_products(KEY_ONLY, ALL_FIELDS)
    frame = pages_frame(database, "shop")
    assert list(frame["url"]) == sorted(frame["url"])
    assert {f"{SITE}/product/A-1", f"{SITE}/product/A-2"} <= set(frame["url"])
    assert (str(frame["version"].dtype), str(frame["seen_at"].dtype)) == ("Int64", "datetime64[us, UTC]")
    assert set(frame["state"]) == {"accepted"}


def test_unknown_sources_and_types_are_said_with_those_there_are(database: Database) -> None:
    fill(database)
    with pytest.raises(UnknownSource, match='no source named "shap"; sources are: shop'):
        pages_frame(database, "shap")
    with pytest.raises(UsageError, match='"shop" has no record type "offer"; there is product'):
        records_frame(database, "shop", "offer")


def test_preview_of_a_run_is_the_first_rows_in_plain_values(database: Database) -> None:
    fill(database).accept_products(
        *({**ALL_FIELDS, "sku": f"A-{n:02}"} for n in range(1, 12)), {**KEY_ONLY, "sku": "A"}
    )
    table = preview(database, "shop")
    assert [record.data["sku"] for record in table.records] == ["A", *(f"A-{n:02}" for n in range(1, 10))]
    empty, full = (record.data for record in table.records[:2])
    assert list(full) == ["(type)", *TYPES]
    values = (full["(type)"], full["price"], full["in_stock"], full["rating"], full["reviews"])
    assert values == ("product", "19.90", True, 4.5, 12)
    assert [type(value) for value in values] == [str, str, bool, float, int]
    assert str(full["since"]).startswith("2024-02-29")
    assert (empty["price"], empty["reviews"], empty["since"], empty["missing_since"]) == (None, None, None, None)
