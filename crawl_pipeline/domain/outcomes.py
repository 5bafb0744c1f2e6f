"""States of a URL and the reasons behind them, as operators see them.

Owns the words only; which page gets which is decided in `pipeline.decide`, and stored by `complete`.
"""

from __future__ import annotations

from enum import StrEnum


class UrlState(StrEnum):
    """`urls.state`. The comment says who moves a URL into it."""

    QUEUED = "queued"  # discovery; `complete` after a transient failure; an expired lease
    ACTIVE = "active"  # `claim`
    ACCEPTED = "accepted"  # `complete`: the content met the contract and is new or changed
    UNCHANGED = "unchanged"  # `complete`: 304, or the content hash equals the stored version's
    REJECTED = "rejected"  # `complete`: a complete answer that does not meet the contract
    QUARANTINED = "quarantined"  # `complete` (tries, key conflict) or `charge` (kills or stalls its worker)
    CANCELLED = "cancelled"  # scope, robots; a limit or the deadline before its first fetch


class Reason(StrEnum):
    """Why a URL is in its state (`urls.reason`), or why an exchange failed (`fetches.reason`)."""

    # transient: the URL is queued again with back-off, a try is spent
    TIMEOUT = "timeout"  # connect, header, total, or low speed; also quarantine: the page overran `page_timeout`
    CONNECTION = "connection"  # refused, reset, unreachable, DNS
    TLS = "tls"  # handshake or certificate
    TRUNCATED = "truncated"  # fewer bytes than promised, a stream cut short
    SERVER_ERROR = "server_error"  # 500, 502, 503, 504
    TRANSIENT_STATUS = "transient_status"  # 408, 425
    PROTOCOL = "protocol"  # an answer that is not HTTP
    # the host's, not the page's: queued again, no try is spent
    THROTTLED = "throttled"  # 429, or Retry-After
    ROBOTS_UNAVAILABLE = "robots_unavailable"  # robots.txt could not be had: the host waits
    HOST_DOWN = "host_down"  # five failures in a row: the host waits
    # rejected
    NOT_FOUND = "not_found"  # 404, 410, once
    GONE = "gone"  # 404, 410 or a soft 404, confirmed by a second visit
    SOFT_404 = "soft_404"  # a 200 that says what the host says of a made-up path, once
    HTTP_STATUS = "http_status"  # any other complete answer that is not 200 or 304
    CONTENT_TYPE = "content_type"  # not in `fetch.types`
    TOO_LARGE = "too_large"  # over `fetch.max_bytes` after decompression
    REDIRECTED = "redirected"  # to another page of the source, which has the content
    REDIRECT_OUT = "redirect_out"  # to another authority, or out of scope
    REDIRECT_LOOP = "redirect_loop"  # more hops than allowed
    CONTENT_CONTRACT = "content_contract"  # `accept`, or a required field is missing
    NOINDEX = "noindex"  # the page asks not to be indexed, and `accept.noindex` is reject
    EXTRACTION_ERROR = "extraction_error"  # a rule or extractor raised
    ADDRESS_REFUSED = "address_refused"  # resolves to a non-global address that `allow_networks` does not name
    UNREQUESTABLE = "unrequestable"  # cannot be put into an HTTP request
    BAD_ENCODING = "bad_encoding"  # a Content-Encoding that could not be decoded
    # quarantined
    TRIES_EXHAUSTED = "tries_exhausted"  # `fetch.tries` transient failures in a row
    POISON = "poison"  # five worker deaths with this page in hand
    UNSTORABLE = "unstorable"  # the database refused its values
    KEY_CONFLICT = "key_conflict"  # two records of the page share a natural key and differ
    # cancelled
    ROBOTS = "robots"  # robots.txt disallows it
    SCOPE = "scope"  # outside `scope`
    TRAP = "trap"  # a path that leads ever on: `limits.max_repeats`, `limits.max_path_segments`
    MAX_DEPTH = "max_depth"
    MAX_PAGES = "max_pages"
    DEADLINE = "deadline"


class StopReason(StrEnum):
    """Why a crawl ended (`crawls.stop_reason`)."""

    FINISHED = "finished"  # nothing queued or active, nothing else due by the cutoff
    NOTHING_DUE = "nothing_due"  # so it was at the start
    DEFERRED = "deferred"  # nothing claimable or active for `max_idle`: the rest stays due
    MAX_PAGES = "max_pages"
    MAX_DURATION = "max_duration"
    STOPPED = "stopped"  # asked to stop: the crawl stays open and is resumed
    FAILED = "failed"  # infrastructure: resumed, or closed as this if the next run is of another kind
