"""The sections of a contract but for its records: scope, limits, identity, politeness, fetching, freshness, keeping."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, StrictBool, StrictInt, StrictStr, Tag, model_validator

from crawl_pipeline.domain import contract_types as kinds
from crawl_pipeline.domain.contract_types import Duration, PositiveDuration, Section

Count = Annotated[StrictInt, Field(ge=1, le=1_000_000_000)]
DEFAULT_USER_AGENT = "crawl_pipeline/0.1"
LEAST_INTERVAL = timedelta(hours=1)
_OWN_HEADERS = frozenset(
    ("accept-encoding", "connection", "content-length", "host", "if-modified-since", "if-none-match", "range")
).union(("te", "transfer-encoding", "user-agent"))


def _word_or_list(value: Any) -> str:
    """Which branch of "a word or a list" a value is judged by, so that a fault speaks of one of them only."""
    return "<list>" if isinstance(value, list | tuple) else "<word>"


SkipTypes = Annotated[
    Annotated[Literal["default"], Tag("<word>")] | Annotated[tuple[kinds.FileEnding, ...], Tag("<list>")],
    Discriminator(_word_or_list),
]
Sitemaps = Annotated[
    Annotated[Literal["auto", "none"], Tag("<word>")] | Annotated[tuple[kinds.HttpUrl, ...], Tag("<list>")],
    Discriminator(_word_or_list),
]


class ScopeSection(Section):
    """Which URLs may be requested at all."""

    hosts: tuple[kinds.HostPattern, ...] = ()
    """Host names, with the port where it is not the default (`127.0.0.1:8800`, both schemes), or `*.example.com` for
    every host below example.com. Left out: the hosts of the seeds."""
    include: kinds.PathGlobs = ()
    """Path globs; a URL must match one. Left out: every path."""
    exclude: kinds.PathGlobs = ()
    """Path globs that win over `include`."""
    skip_types: SkipTypes = "default"
    """File endings that are never requested: `default` (images, archives, sound, video, fonts, styles, scripts,
    office documents) or a list."""
    follow_nofollow: StrictBool = False
    """Whether links marked `rel=nofollow`, and all those of pages whose robots meta or X-Robots-Tag says so, are
    followed."""


class LimitsSection(Section):
    """Where a crawl stops. Every limit is finite."""

    max_depth: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 20
    """Links from a seed to a page; seeds and sitemap URLs have depth 0."""
    max_pages: Count = 10_000
    """Accepted and unchanged pages of one crawl."""
    max_urls: Count = 100_000
    """Known URLs of the source; those beyond are counted, not stored."""
    max_duration: PositiveDuration = timedelta(hours=6)
    """How long one crawl may take; then never-visited URLs are cancelled until the next one."""
    max_idle: PositiveDuration = timedelta(minutes=5)
    """How long a crawl waits while nothing can be claimed; then it closes as deferred."""
    max_repeats: Annotated[StrictInt, Field(ge=1, le=2_048)] = 3
    """How often one segment (digits apart) may stand in a path, and one page be linked under other session ids in the
    path; what goes beyond is a crawl trap."""
    max_path_segments: Annotated[StrictInt, Field(ge=1, le=2_048)] = 20
    """Segments of a path; a longer path is a crawl trap."""
    max_url_variants: Count = 1_000
    """Queries of four parameters or more that one worker takes of one path; those beyond are a crawl trap (facets)."""
    max_links_per_page: Count = 2_000
    """Distinct links taken from one page, in the order of the page."""
    max_in_flight: Annotated[StrictInt, Field(ge=1, le=10_000)] = 64
    """Requests that one crawl has open at once, over all hosts."""


class UrlsSection(Section):
    """Which URLs are the same page: only what is named is dropped."""

    drop_query: tuple[kinds.QueryGlob, ...] = ("utm_*", "gclid", "fbclid", "jsessionid")
    """Names of query parameters that say nothing about the page; `*` stands for any characters. They are dropped from
    the request too, and so are parameters of the path (`;jsessionid=…`)."""
    keep_query: tuple[kinds.QueryGlob, ...] | None = None
    """Names of the only query parameters that are kept, less those of `drop_query`; null: all are."""
    sort_query: StrictBool = True
    """Whether the order of differently named parameters is without meaning; `a=1&a=2` is never `a=2&a=1`."""
    trailing_slash: Literal["keep", "strip"] = "keep"
    """`strip`: `/a/` is the page `/a`. Requests keep the author's spelling."""


class PolitenessSection(Section):
    """What the source asks of its hosts; each host gets the strictest of what all sources and its robots.txt ask."""

    slots: Annotated[StrictInt, Field(ge=1, le=1_000)] = 2
    """Requests that may be open at one host at once."""
    min_delay: Duration = timedelta(seconds=1)
    """The least time between two request starts at one host; `0s` for a site of your own."""
    adaptive: StrictBool = True
    """Whether a host that answers slower than it used to, fails or says 429 or 503 is asked less often than `min_delay`
    allows, up to once a minute, until it is well again; a healthy host never is."""
    robots: Literal["obey", "ignore"] = "obey"
    """`ignore` for a site of your own."""
    max_crawl_delay: Duration = timedelta(seconds=60)
    """The longest Crawl-delay of a robots.txt that is kept to; a longer one counts as this."""
    max_retry_after: PositiveDuration = timedelta(hours=1)
    """The longest Retry-After that is kept to; a longer one counts as this."""
    user_agent: kinds.UserAgent = DEFAULT_USER_AGENT
    """What the crawler calls itself; add a contact, `shop-bot/1.0 (+https://example.com/bot)`. robots.txt knows it by
    the name before the slash."""


def _renderer(value: str) -> str:
    if value != "none":
        raise ValueError("pages are not rendered: use none, or leave the key out")
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    found = [(name, "is a header that the crawler sets by itself") for name in value if name.lower() in _OWN_HEADERS]
    if found:
        raise kinds.faults(found)
    return value


Headers = Annotated[dict[kinds.HeaderName, kinds.EnvironmentName], AfterValidator(_headers)]


class FetchSection(Section):
    """How pages are requested, and what of an answer is taken."""

    client: Literal["libcurl", "requests"] = "libcurl"
    """`libcurl` is fast; `requests` is for sites that need its adapters. Both keep the same limits and address rule;
    which broken response heads they forgive differs."""
    renderer: Annotated[StrictStr, AfterValidator(_renderer), Field(json_schema_extra={"enum": ["none"]})] = "none"
    """Only `none`: pages are read as the server sends them."""
    timeout: PositiveDuration = timedelta(seconds=30)
    """The longest that one exchange may take."""
    page_timeout: PositiveDuration = timedelta(minutes=2)
    """The longest that reading one page may take: parsing and extraction, without the exchange (see `timeout`)."""
    max_bytes: kinds.ByteSize = 10_000_000
    """The largest body that is taken, after decompression."""
    types: Annotated[tuple[kinds.MediaType, ...], Field(min_length=1)] = ("text/html", "application/xhtml+xml")
    """Media types that are taken. The first bytes count too: what is no text is not taken as HTML, and mere bytes
    (`application/octet-stream`) that begin as HTML does are."""
    tries: Annotated[StrictInt, Field(ge=1, le=100)] = 4
    """Transient failures in a row after which a page is quarantined."""
    allow_networks: tuple[kinds.Network, ...] = ()
    """Networks of your own that may be connected to, such as `127.0.0.0/8`; all other non-global addresses are
    refused."""
    headers: Headers = Field(default_factory=dict)
    """Extra request headers: the name of each, and the environment variable that holds its value."""


class FreshnessRule(Section):
    """How fresh the pages of some paths are kept."""

    match: Annotated[kinds.PathGlobs, Field(min_length=1)]
    """Path globs; the first rule that matches holds."""
    window: PositiveDuration
    """As `freshness.window`."""
    interval: PositiveDuration | None = None
    """As `freshness.interval`."""

    @model_validator(mode="after")
    def _interval_within_window(self) -> FreshnessRule:
        _check_interval(self.interval, self.window)
        return self


class FreshnessSection(Section):
    """How fresh pages are kept."""

    window: PositiveDuration = timedelta(hours=24)
    """The promise: no page was last checked longer ago."""
    interval: PositiveDuration | None = None
    """The average time between checks, and so the cost; null: 0.8 of the window."""
    min: Duration = LEAST_INTERVAL
    """The least time between two checks of a page, and from the opening of a source's last crawl to one that the
    schedule starts. Left out: 1h, or the shortest window where that is shorter."""
    rules: tuple[FreshnessRule, ...] = ()
    """Other windows for some paths."""

    @model_validator(mode="after")
    def _windows_hold(self) -> FreshnessSection:
        _check_interval(self.interval, self.window)
        windows = [("window", self.window), *((f"rules[{i}].window", rule.window) for i, rule in enumerate(self.rules))]
        shortest = sorted(windows, key=lambda named: named[1])[0]
        if "min" not in self.model_fields_set:
            self.__dict__["min"] = LEAST_INTERVAL if shortest[1] > LEAST_INTERVAL else shortest[1]
        elif self.min > shortest[1]:
            raise kinds.fault(f"is longer than freshness.{shortest[0]}: no page could keep that promise", "min")
        return self


def _check_interval(interval: timedelta | None, window: timedelta) -> None:
    if interval is not None and interval > window:
        raise kinds.fault("is longer than the window: checks would come too late to keep it", "interval")


class AcceptSection(Section):
    """What a page must have to be accepted, and which parts of it carry no meaning."""

    min_text_chars: Annotated[StrictInt, Field(ge=0, le=10_000_000)] = 1
    """The least visible text; 200 suits articles."""
    require: tuple[kinds.Selector, ...] = ()
    """CSS selectors that must each match something."""
    language: kinds.LanguageTag | None = None
    """A language tag that `<html lang>` must begin with (`en` takes en-GB); null: any language, or none named."""
    ignore: tuple[kinds.Selector, ...] = ()
    """CSS selectors of regions that do not count when a page is compared with its last version."""
    soft_404: StrictBool = True
    """Whether a page that says what its host says of a made-up path counts as not found. A host is asked for one such
    path, the first time that a page of it is suspicious."""
    noindex: Literal["store", "reject"] = "store"
    """What becomes of a page that asks not to be indexed, by X-Robots-Tag or its robots meta: stored with a flag, or
    rejected; its links are followed either way."""


DEFAULT_VERSIONS = 20
DEFAULT_AGE = timedelta(days=365)


def _versions(value: int) -> int:
    if value != DEFAULT_VERSIONS:
        raise ValueError("old page versions are not deleted yet, every one is kept: leave the key out")
    return value


def _age(value: timedelta) -> timedelta:
    if value != DEFAULT_AGE:
        raise ValueError("old page versions are not deleted yet, every one is kept: leave the key out")
    return value


class RetentionSection(Section):
    """How long old page versions are to be kept. Nothing is deleted yet: a value other than the default is refused."""

    versions: Annotated[Count, AfterValidator(_versions)] = DEFAULT_VERSIONS
    """Page versions that are to be kept for each page. Not built yet: every one is kept, another value is refused."""
    age: Annotated[PositiveDuration, AfterValidator(_age)] = DEFAULT_AGE
    """How long a page version is to be kept after a newer one replaced it. Not built yet: for ever, another value is
    refused."""
