"""Records of a page, by the rules of its source's contract, and the hash of what the page says.

Owns which rules apply and what an extraction is; fields are read in `fields`, custom extractors run in `custom`, and
whether the page is accepted is judged in `acceptance`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import turbohtml

from crawl_pipeline.domain.globs import compile_glob
from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.domain.pages import PageUrl
from crawl_pipeline.domain.records import Record, make_record
from crawl_pipeline.domain.urls import canonical_path
from crawl_pipeline.errors import UsageError
from crawl_pipeline.parsing.copies import MOST_CHARACTERS, ExtractorFault
from crawl_pipeline.parsing.custom import MOST_RECORDS, CustomExtractor, Page, PageTimeout
from crawl_pipeline.parsing.document import Document
from crawl_pipeline.parsing.fields import FieldSpec, PageData, Scope, compiled_fields
from crawl_pipeline.parsing.meaning import HASH_VERSION, VisibleText, content_hash, visible_text
from crawl_pipeline.parsing.selectors import check_selector

__all__ = ["Extraction", "Extractor", "Fault", "PageTimeout", "check_selector"]

# Part of every extractor version: raise it when the same page and rules may give other records.
EXTRACTION_VERSION = 1
_MOST_FAULTS = 20


class RecordSpec(Protocol):
    """What is read of `contract.records[i]`."""

    @property
    def type(self) -> str: ...
    @property
    def match(self) -> Sequence[str]: ...
    @property
    def each(self) -> str | None: ...
    @property
    def key(self) -> Sequence[str]: ...
    @property
    def fields(self) -> Mapping[str, FieldSpec]: ...
    @property
    def python(self) -> str | None: ...


class AcceptSpec(Protocol):
    """What is read of `contract.accept`."""

    @property
    def min_text_chars(self) -> int: ...
    @property
    def require(self) -> Sequence[str]: ...
    @property
    def language(self) -> str | None: ...
    @property
    def ignore(self) -> Sequence[str]: ...


class ExtractionRules(Protocol):
    """What extraction reads of a contract."""

    @property
    def source(self) -> str: ...
    @property
    def extractor_fingerprint(self) -> str: ...
    @property
    def records(self) -> Sequence[RecordSpec]: ...
    @property
    def accept(self) -> AcceptSpec: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a page does not meet one rule: `rule` is the contract's path (`records[0]`), `detail` a sentence."""

    rule: str
    reason: Reason  # CONTENT_CONTRACT, or EXTRACTION_ERROR when a custom extractor failed
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What a page yields. `records` holds each natural key once; where there are faults or a conflict, judge first.

    `conflict` names a key that two different records of the page share, `notes` what was passed over without harm.
    """

    records: tuple[Record, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    conflict: str | None
    text: VisibleText
    content_hash: bytes


class Extractor:
    """A contract's rules, compiled once. Raises UsageError for a selector or function that does not exist.

    `version` changes whenever the same page may yield something else: with the rules, the parser, this code, or the
    source of a custom extractor's module.
    """

    def __init__(self, contract: ExtractionRules) -> None:
        _check_selectors(contract)
        self._source = contract.source
        self._rules = [_Rule(index, spec) for index, spec in enumerate(contract.records)]
        self._ignored = ", ".join(contract.accept.ignore) or None
        parts = [contract.extractor_fingerprint, turbohtml.__version__, f"{EXTRACTION_VERSION}.{HASH_VERSION}"]
        parts += [rule.custom.fingerprint for rule in self._rules if rule.custom is not None]
        self.version = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def text(self, document: Document) -> VisibleText:
        """What the page says, less what the contract ignores."""
        return visible_text(document, self._ignored)

    def extract(self, document: Document, url: PageUrl) -> Extraction:
        """Read a page's records and hash its meaning. Never raises but PageTimeout and KeyboardInterrupt.

        The document is left as it was. Equal pages give equal extractions, byte for byte.
        """
        gathered = _Gathered(self._source)
        path = canonical_path(url.canonical)
        page = PageData(document)
        for rule in self._rules:
            if rule.applies_to(path):
                rule.read(page, url, gathered)
        text = self.text(document)
        records = tuple(gathered.records.values())
        return Extraction(
            records=records,
            faults=tuple(gathered.faults[:_MOST_FAULTS]),
            notes=tuple(gathered.notes[:_MOST_FAULTS]),
            conflict=gathered.conflict,
            text=text,
            content_hash=content_hash(text, records),
        )


class _Gathered:
    """The records and faults of one page so far."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.records: dict[object, Record] = {}
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.conflict: str | None = None
        self._characters = 0

    def add(self, rule: _Rule, data: Mapping[str, object]) -> bool:
        """Take one record; False when the page has too many, or too much, for more to be taken."""
        missing = [name for name in rule.key if data.get(name) in (None, "")]
        if missing:
            self.fault(rule, f"a record without its key field {missing[0]}", custom=rule.custom is not None)
            return True
        try:
            record = make_record(self._source, rule.type, rule.key, data)
        except (TypeError, ValueError, RecursionError) as error:
            self.fault(rule, f"a record that cannot be stored: {error}", custom=rule.custom is not None)
            return True
        self._characters += len(record.data)
        if self._characters > MOST_CHARACTERS or len(self.records) >= MOST_RECORDS:
            self.fault(rule, f"more than {MOST_RECORDS:,} records or {MOST_CHARACTERS:,} characters on one page")
            return False
        known = self.records.setdefault(record.record_id, record)
        if known.data_hash != record.data_hash and self.conflict is None:
            self.conflict = f"two different records of type {rule.type} have the key {record.key[:200]}"
        return True

    def fault(self, rule: _Rule, detail: str, *, custom: bool = False) -> None:
        reason = Reason.EXTRACTION_ERROR if custom else Reason.CONTENT_CONTRACT
        self.faults.append(Fault(rule=f"records[{rule.index}]", reason=reason, detail=detail))


class _Rule:
    """One record rule."""

    def __init__(self, index: int, spec: RecordSpec) -> None:
        self.index = index
        self.type = spec.type
        self.key = tuple(spec.key)
        self._globs = [compile_glob(pattern) for pattern in spec.match]
        self._each = spec.each
        self._fields = compiled_fields(spec.fields, self.key)
        self.custom = CustomExtractor(spec.python) if spec.python is not None else None

    def applies_to(self, path: str) -> bool:
        return any(glob.fullmatch(path) for glob in self._globs)

    def read(self, page: PageData, url: PageUrl, gathered: _Gathered) -> None:
        if self.custom is not None:
            self._run(self.custom, page, url, gathered)
            return
        tree = page.document.tree
        scopes: Sequence[Scope] = [tree] if self._each is None else tree.select(self._each)
        for scope in scopes:
            data = self._record(scope, page, gathered)
            if len(gathered.faults) > _MOST_FAULTS or (data is not None and not gathered.add(self, data)):
                return

    def _record(self, scope: Scope, page: PageData, gathered: _Gathered) -> dict[str, object] | None:
        data: dict[str, object] = {}
        is_whole = True
        for field in self._fields:
            result = field.read(scope, page)
            data[field.name] = result.value
            if result.fault is not None:
                is_whole = False
                gathered.fault(self, result.fault)
            elif result.note is not None and len(gathered.notes) < _MOST_FAULTS:
                gathered.notes.append(result.note)
        return data if is_whole else None

    def _run(self, custom: CustomExtractor, page: PageData, url: PageUrl, gathered: _Gathered) -> None:
        try:
            found = custom.records(Page(url.url, page.document))
        except ExtractorFault as fault:
            gathered.fault(self, str(fault), custom=True)
            return
        for data in found:
            if not gathered.add(self, data):
                return


def _check_selectors(contract: ExtractionRules) -> None:
    selectors = {f"accept.require[{i}]": css for i, css in enumerate(contract.accept.require)}
    selectors |= {f"accept.ignore[{i}]": css for i, css in enumerate(contract.accept.ignore)}
    for index, spec in enumerate(contract.records):
        if spec.each is not None:
            selectors[f"records[{index}].each"] = spec.each
        selectors |= {f"records[{index}].fields.{name}.css": f.css for name, f in spec.fields.items() if f.css}
    for path, css in selectors.items():
        fault = check_selector(css)
        if fault is not None:
            raise UsageError(f"the contract of {contract.source}: {path} {fault}")
