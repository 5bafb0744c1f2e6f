"""The identity of records."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawl_pipeline.domain.records import canonical_json, make_record

DATA: dict[str, object] = {"sku": "A-1", "price": Decimal("19.90"), "day": date(2026, 3, 1), "name": "Käse"}


def test_record_is_identified_by_source_type_and_key_alone() -> None:
    record = make_record("shop", "product", ["sku"], DATA)
    identity = '["shop","product","[\\"A-1\\"]"]'
    assert record.record_id.bytes == hashlib.sha256(identity.encode()).digest()[:16]
    assert make_record("shop", "product", ["sku"], {**DATA, "price": Decimal("1")}).record_id == record.record_id
    assert make_record("shop2", "product", ["sku"], DATA).record_id != record.record_id
    assert make_record("shop", "offer", ["sku"], DATA).record_id != record.record_id
    assert make_record("shop", "product", ["name"], DATA).record_id != record.record_id


def test_data_is_canonical_json_whatever_the_order_of_fields() -> None:
    record = make_record("shop", "product", ["sku"], DATA)
    assert record.data == '{"day":"2026-03-01","name":"Käse","price":"19.90","sku":"A-1"}'
    again = make_record("shop", "product", ["sku"], dict(reversed(DATA.items())))
    assert again == record


def test_key_keeps_the_kind_and_order_of_its_values() -> None:
    def key(*names: str, **data: object) -> str:
        return make_record("s", "t", names, data).key

    assert key("a", a=1) != key("a", a="1")
    assert key("a", "b", a=1, b=2) == "[1,2]"
    assert key("b", "a", a=1, b=2) == "[2,1]"
    assert key("a", "b", a="x", b="y,z") != key("a", "b", a="x,y", b="z")


def test_changed_value_changes_the_hash_and_trailing_zeros_of_prices_count() -> None:
    def data_hash(**data: object) -> bytes:
        return make_record("s", "t", ["a"], {"a": 1, **data}).data_hash

    assert data_hash(p=Decimal("1.5")) != data_hash(p=Decimal("1.50"))
    assert data_hash(p=Decimal("1.5")) == data_hash(p=Decimal("1.5"))
    assert len(data_hash()) == 16


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_number_that_json_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": value})


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_value_that_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a record cannot hold"):
        canonical_json({"a": value})


def test_times_are_iso_8601() -> None:
    assert canonical_json(datetime(2026, 3, 1, 12, tzinfo=UTC)) == '"2026-03-01T12:00:00+00:00"'


@given(st.text())
def test_every_text_makes_an_identity(text: str) -> None:
    record = make_record("s", "t", ["a"], {"a": text})
    assert record == make_record("s", "t", ["a"], {"a": text})
