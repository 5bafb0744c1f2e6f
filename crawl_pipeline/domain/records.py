"""Records and their identity (design: a natural key within a source and record type)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import NewType
from uuid import UUID

RecordId = NewType("RecordId", UUID)


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no needless space: the one spelling that hashes and keys are made from.

    Decimals keep their digits (as strings), dates are ISO 8601, text keeps its characters. Raises TypeError
    for what JSON cannot hold and ValueError for NaN and infinities.
    """
    return _ENCODER.encode(value)


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of one page. `data` is canonical JSON of all declared fields, `key` of the key fields' values."""

    record_id: RecordId
    record_type: str
    key: str
    data: str
    data_hash: bytes  # 16 bytes of SHA-256 of `data`


def make_record(source: str, record_type: str, key_fields: Sequence[str], data: Mapping[str, object]) -> Record:
    """Identify one record: `record_id` is the first 16 bytes of SHA-256 of source, type and natural key.

    The key is the list of the key fields' values in their declared order. Raises as `canonical_json`.
    """
    key = canonical_json([data[name] for name in key_fields])
    text = canonical_json(data)
    identity = canonical_json([source, record_type, key])
    return Record(
        record_id=RecordId(UUID(bytes=hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()[:16])),
        record_type=record_type,
        key=key,
        data=text,
        data_hash=hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16],
    )
