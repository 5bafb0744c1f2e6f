"""What crosses the layers: leases and their URLs, HTTP exchanges, parsed pages' results, completed pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType
from uuid import UUID

from crawl_pipeline.domain.outcomes import UrlState
from crawl_pipeline.domain.records import Record

UrlKey = NewType("UrlKey", UUID)
LeaseToken = NewType("LeaseToken", UUID)
CrawlId = NewType("CrawlId", UUID)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageUrl:
    """An admitted URL. `url` is what is requested (the author's query order); `key` identifies its canonical form.

    `authority` names the host whose budget it spends: the host name, with the port where it is not the default.
    """

    key: UrlKey
    url: str
    canonical: str
    authority: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVersion:
    """The current page version of a URL and how it was last extracted."""

    version_id: int
    body_hash: bytes
    content_hash: bytes
    extractor_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedUrl:
    """One URL of a lease, with what is known of it; as it stands, one that was never visited."""

    key: UrlKey
    url: str
    is_sitemap: bool = False
    depth: int = 0
    tries: int = 0
    expiries: int = 0
    last_fetched_at: datetime | None = None  # of the last complete answer
    outcome: UrlState | None = None  # its state
    outcome_reason: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    version: KnownVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A share of one host's slots and a batch of that host's due URLs, held until `expires_at` (database clock).

    Slot i of the share may start requests at `first_starts[i] + n * period`, n = 0, 1, …
    """

    token: LeaseToken
    source_id: int
    host_id: int
    authority: str
    expires_at: datetime
    first_starts: tuple[datetime, ...]
    period: timedelta
    delay: timedelta  # the least between two starts at the host, over all its leases
    host_failures: int  # failures in a row at the host when it was claimed
    urls: tuple[ClaimedUrl, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """One hop: exactly one HTTP request, no redirect followed."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)  # User-Agent, If-None-Match, …
    timeout: float = 30.0  # seconds, the whole exchange
    connect_timeout: float = 10.0
    max_bytes: int = 10_000_000  # of the body after decompression
    keeps_beginning: bool = False  # of a longer body; else it is too large
    types: tuple[str, ...] | None = None  # media types whose body is wanted; None: any
    allow_networks: tuple[str, ...] = ()  # CIDR: non-global addresses that may be connected to


class FetchFailure(StrEnum):
    """Why an exchange has no complete answer. Each is also a `Reason`."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    TLS = "tls"
    TRUNCATED = "truncated"
    PROTOCOL = "protocol"
    TOO_LARGE = "too_large"
    ADDRESS_REFUSED = "address_refused"
    BAD_ENCODING = "bad_encoding"
    ABORTED = "aborted"  # by us: stop, lease lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What came back from one hop. Exactly one of `failure` and a complete answer; `status` may be known with both.

    A body whose media type is not wanted is not read: `body` is empty and `type_refused` is True.
    """

    request: FetchRequest
    started_at: datetime  # aware, UTC
    elapsed: float  # seconds
    status: int | None = None
    headers: Sequence[tuple[str, str]] = ()  # as received, names in lower case, of the final header block
    body: bytes = b""
    failure: FetchFailure | None = None
    detail: str | None = None  # one line for people, without credentials
    type_refused: bool = False
    http_version: str | None = None  # "1.1", "2"
    address: str | None = None  # the peer

    def header(self, name: str) -> str | None:
        """The last value of a header, by its lower-case name."""
        value = None
        for key, text in self.headers:
            if key == name:
                value = text
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLog:
    """One row of `fetches`."""

    url: str
    started_at: datetime
    elapsed: float
    status: int | None
    failure: str | None
    detail: str | None
    body_bytes: int
    body_hash: bytes | None
    http_version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """A page version to store; `body` is the bytes as received (decompressed), stored once under `body_hash`."""

    body_hash: bytes
    body: bytes
    content_hash: bytes
    extractor_version: str
    content_type: str | None
    encoding: str | None
    title: str | None
    markdown: str
    final_url: str
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLink:
    """A link to discover: an admitted URL and how deep it lies."""

    page: PageUrl
    depth: int
    is_sitemap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedPage:
    """A page's whole effect, stored by `complete` in one transaction under its lease token."""

    token: LeaseToken
    source_id: int
    host_id: int
    key: UrlKey
    state: UrlState
    reason: str | None
    due_at: datetime | None
    tries: int
    is_checked: bool  # a complete answer: moves `last_fetched_at`
    is_sitemap: bool = False
    has_validators: bool = False  # a 200: both validators are replaced, also by nothing
    etag: str | None = None
    last_modified: str | None = None
    is_noindex: bool = False  # with `has_validators`: the page asks not to be indexed
    robots_tags: tuple[str, ...] = ()  # with `has_validators`: its X-Robots-Tag headers
    host_failed: bool | None = None  # True: counts for the host's outage; False: a success; None: says nothing
    fetches: tuple[FetchLog, ...] = ()
    version: NewVersion | None = None
    extraction: tuple[str, bytes] | None = None  # (extractor version, content hash) of the current version, when new
    links: tuple[FoundLink, ...] = ()
    records: tuple[Record, ...] | None = None  # the page's whole set; None: leave them as they are
    redirected_to: UrlKey | None = None  # the page that has the content now: records that both claim pass to it
