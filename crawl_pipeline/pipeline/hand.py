"""What a worker has in hand: a few bytes that its supervisor can read also after the worker was killed.

A file of one record, mapped by both. The worker names a page before it parses it, so that a death or a stall is paid by
that page alone; and it counts the requests that it starts.
"""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass
from typing import BinaryIO
from uuid import UUID

from crawl_pipeline.domain.pages import LeaseToken, UrlKey

_RECORD = struct.Struct("<Bd16s16sqqq")
_IN_HAND, _SINCE = struct.Struct("<B"), struct.Struct("<d")
_PAGE = struct.Struct("<16s16s")
_COUNTS = struct.Struct("<qqq")
_AT_PAGE = _IN_HAND.size + _SINCE.size
_AT_COUNTS = _AT_PAGE + _PAGE.size
SIZE = _RECORD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The page in hand and for how long (seconds)."""

    token: LeaseToken
    key: UrlKey
    seconds: float


class Hand:
    """Both ends of the record. One writer (the worker's main thread), any reader on the same machine."""

    def __init__(self, file: BinaryIO) -> None:
        file.truncate(SIZE)
        self._map = mmap.mmap(file.fileno(), SIZE)

    def take(self, token: LeaseToken, key: UrlKey) -> None:
        """Name the page that is worked on from now."""
        self._map[_AT_PAGE:_AT_COUNTS] = token.bytes + key.bytes
        _SINCE.pack_into(self._map, _IN_HAND.size, time.monotonic())
        self._map[0] = 1

    def drop(self) -> None:
        """Nothing is in hand any more."""
        self._map[0] = 0

    def count(self, pages: int, others: int, finished: int) -> None:
        """Requests started for pages and for other things, and pages finished, since the worker's start."""
        _COUNTS.pack_into(self._map, _AT_COUNTS, pages, others, finished)

    def held(self) -> Held | None:
        """The page in hand; None when there is none."""
        if self._map[0] == 0:
            return None
        token, key = _PAGE.unpack_from(self._map, _AT_PAGE)
        (since,) = _SINCE.unpack_from(self._map, _IN_HAND.size)
        return Held(token=LeaseToken(UUID(bytes=token)), key=UrlKey(UUID(bytes=key)), seconds=time.monotonic() - since)

    def counts(self) -> tuple[int, int, int]:
        """Requests for pages, other requests, pages finished."""
        pages, others, finished = _COUNTS.unpack_from(self._map, _AT_COUNTS)
        return pages, others, finished

    def close(self) -> None:
        """Unmap the record."""
        self._map.close()
