"""Scope and admission: which URLs a source may request at all, and which links become pages of it.

Robots and addresses are judged elsewhere (`domain.robots`, `fetching`); this is the contract's own word.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from crawl_pipeline.domain.globs import compile_glob as compile_glob  # re-exported: the matcher of every path rule
from crawl_pipeline.domain.globs import host_matches
from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.traps import TrapLimits, Variants, path_trap
from crawl_pipeline.domain.urls import LONGEST_URL, Canonicalizer, UrlPolicy, UrlRefusal, canonical_path, origin_of

_SKIP_TYPES = {
    "images": "apng avif bmp cur eps gif heic heif ico jfif jpe jpeg jpg jxl png psd svg svgz tif tiff webp",
    "archives": "7z apk bin bz2 cab deb dmg exe gz iso jar lz lzma msi pkg rar rpm tar tbz tgz txz war xz zip zst",
    "sound": "aac aif aiff flac m3u8 m4a m4b mid midi mp2 mp3 oga ogg opus ra ram wav wma",
    "video": "3gp asf avi flv m4v mkv mov mp4 mpeg mpg ogv rm swf ts vob webm wmv",
    "fonts": "eot otf ttf woff woff2",
    "styles": "css less scss",
    "scripts": "cjs js mjs wasm",
    "documents": "doc docm docx dot dotx epub key mobi odg odp ods odt pdf pot pps ppsx ppt pptm pptx rtf",
    "sheets": "xls xlsb xlsm xlsx",
}
DEFAULT_SKIP_TYPES: frozenset[str] = frozenset(name for names in _SKIP_TYPES.values() for name in names.split())


class ScopeRules(Protocol):
    """The contract's section `scope`; hosts are canonical, globs valid."""

    @property
    def hosts(self) -> Sequence[str]: ...
    @property
    def include(self) -> Sequence[str]: ...
    @property
    def exclude(self) -> Sequence[str]: ...
    @property
    def skip_types(self) -> str | Sequence[str]: ...


class Limits(TrapLimits, Protocol):
    """What is read of `contract.limits`."""

    @property
    def max_depth(self) -> int: ...


class AdmissionRules(Protocol):
    """What admission reads of a contract."""

    @property
    def scope(self) -> ScopeRules: ...
    @property
    def urls(self) -> UrlPolicy: ...
    @property
    def limits(self) -> Limits: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeVerdict:
    """Whether a URL is in scope. `rule` names the contract key that decided, for people (`scope.exclude /cart/**`)."""

    allowed: bool
    reason: Reason | None = None
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A link that becomes no page: out of scope, too deep, or (reason None) not a URL that names a page."""

    reason: Reason | None
    rule: str


class Scope:
    """The compiled section `scope` with the limits of a single URL. Immutable, safe to share between threads."""

    def __init__(self, rules: ScopeRules, limits: Limits | None = None) -> None:
        self._exact = frozenset(host for host in rules.hosts if not host.startswith("*."))
        self._wild = tuple(host for host in rules.hosts if host.startswith("*."))
        self._include = [(f"scope.include {glob}", compile_glob(glob)) for glob in rules.include]
        self._exclude = [(f"scope.exclude {glob}", compile_glob(glob)) for glob in rules.exclude]
        self._skip = DEFAULT_SKIP_TYPES if isinstance(rules.skip_types, str) else frozenset(rules.skip_types)
        self._limits = limits

    def verdict(self, page: PageUrl, depth: int = 0) -> ScopeVerdict:
        """Judge a page by host, path, file ending, traps and depth, in that order; excludes win over includes."""
        host = self._host_rule(page.authority)
        if host is None:
            return _out(f"scope.hosts: none is {page.authority}")
        path = canonical_path(page.canonical)
        for rule, glob in self._exclude:
            if glob.fullmatch(path):
                return _out(rule)
        included = next((rule for rule, glob in self._include if glob.fullmatch(path)), None)
        if included is None and self._include:
            return _out("scope.include: no glob takes the path")
        ending = path.rpartition("/")[2].rpartition(".")[2] if "." in path else ""
        if ending.lower() in self._skip:
            return _out(f"scope.skip_types {ending.lower()}")
        limits = self._limits
        if limits is not None:
            if (trap := path_trap(path, limits)) is not None:
                return ScopeVerdict(allowed=False, reason=Reason.TRAP, rule=trap)
            if depth > limits.max_depth:
                return ScopeVerdict(allowed=False, reason=Reason.MAX_DEPTH, rule=f"limits.max_depth {limits.max_depth}")
        return ScopeVerdict(allowed=True, rule=included or f"scope.hosts {host}")

    def _host_rule(self, authority: str) -> str | None:
        if authority in self._exact:
            return authority
        return next((pattern for pattern in self._wild if host_matches(pattern, authority)), None)


def _out(rule: str) -> ScopeVerdict:
    return ScopeVerdict(allowed=False, reason=Reason.SCOPE, rule=rule)


class Admission:
    """Turns hrefs into pages of a source. Each distinct href of an origin is canonicalised and judged once.

    The cache is bounded (least recently used goes first) and not safe to share between threads: one per crawl loop.
    """

    def __init__(self, contract: AdmissionRules, *, remember: int = 20_000) -> None:
        self._canonicalizer = Canonicalizer(contract.urls)
        self._scope = Scope(contract.scope, contract.limits)
        self._variants = Variants(contract.limits)
        self._traps = 0
        self._max_depth = contract.limits.max_depth
        self._too_deep = Refusal(reason=Reason.MAX_DEPTH, rule=f"limits.max_depth {self._max_depth}")
        self._remember = remember
        self._known: OrderedDict[str | tuple[str | None, str], PageUrl | Refusal] = OrderedDict()
        self._base: str | None = None
        self._origin: str | None = None

    def admit(self, href: str, base: str | None, depth: int) -> PageUrl | Refusal:
        """The page that `href` names on a page at `base`, or why it is none. Never raises, whatever the text."""
        verdict = self._verdict(href, base)
        return self._too_deep if depth > self._max_depth and isinstance(verdict, PageUrl) else verdict

    def admit_all(self, hrefs: Iterable[str], base: str | None, depth: int) -> tuple[list[PageUrl], int]:
        """The distinct pages that a page's hrefs name, in order, and how many hrefs were refused."""
        pages: dict[str, PageUrl] = {}
        refused = 0
        judge = self._verdict
        is_too_deep = depth > self._max_depth
        for href in hrefs:
            verdict = judge(href, base)
            if is_too_deep or isinstance(verdict, Refusal):
                refused += 1
            else:
                pages.setdefault(verdict.canonical, verdict)
        return list(pages.values()), refused

    def take_traps(self) -> int:
        """How many distinct links were refused as crawl traps since the last call, as far as the cache tells."""
        traps, self._traps = self._traps, 0
        return traps

    def _verdict(self, href: str, base: str | None) -> PageUrl | Refusal:
        if href.startswith(("https://", "http://")):
            key: str | tuple[str | None, str] = href
            base = None  # it is whole: not even a broken base can spoil it
        elif href.startswith("/"):
            if base is not self._base:
                self._base, self._origin = base, _origin(base)
            key = (self._origin, href)
        else:
            key = (base, href)
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._judge(href, base)
            if len(href) <= LONGEST_URL:  # a longer one would cost more memory than its second judgement costs time
                if len(self._known) >= self._remember:
                    self._known.popitem(last=False)
                self._known[key] = verdict
        else:
            self._known.move_to_end(key)
        return verdict

    def _judge(self, href: str, base: str | None) -> PageUrl | Refusal:
        page = self._canonicalizer.page_url(href, base)
        if isinstance(page, UrlRefusal):
            return Refusal(reason=None, rule=page.fault.value)
        verdict = self._scope.verdict(page)
        if verdict.allowed and (trap := self._variants.trap(page)) is not None:
            verdict = ScopeVerdict(allowed=False, reason=Reason.TRAP, rule=trap)
        self._traps += verdict.reason is Reason.TRAP
        return page if verdict.allowed else Refusal(reason=verdict.reason, rule=verdict.rule)


def _origin(base: str | None) -> str | None:
    """Scheme and authority of a serialised http(s) URL; anything else stands for itself."""
    if base is None or not base.startswith(("http://", "https://")):
        return base
    return origin_of(base)
