"""Whether a page meets its contract's `accept` and its records' rules; if not, the first reason, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.parsing.document import Document
from crawl_pipeline.parsing.extraction import AcceptSpec, Extraction, ExtractionRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why a page is not accepted: CONTENT_CONTRACT, EXTRACTION_ERROR or KEY_CONFLICT, and a sentence for people."""

    reason: Reason
    detail: str


def judge(extraction: Extraction, document: Document, contract: ExtractionRules) -> Shortfall | None:
    """The first rule that a page does not meet; None if it meets them all.

    In this order: the page as a whole (so that an error page is told as one, and not as the exception that an
    extractor met in it), custom extractors that failed, fields and keys, two records with one key.
    """
    detail = _page_shortfall(extraction, document, contract.accept)
    if detail is not None:
        return Shortfall(reason=Reason.CONTENT_CONTRACT, detail=detail)
    for fault in sorted(extraction.faults, key=lambda fault: fault.reason is not Reason.EXTRACTION_ERROR):
        more = len(extraction.faults) - 1
        others = f" (and {more} more fault{'s' if more > 1 else ''})" if more else ""
        return Shortfall(reason=fault.reason, detail=f"{fault.rule}: {fault.detail}{others}")
    if extraction.conflict is not None:
        return Shortfall(reason=Reason.KEY_CONFLICT, detail=extraction.conflict)
    return None


def _page_shortfall(extraction: Extraction, document: Document, accept: AcceptSpec) -> str | None:
    chars = len(extraction.text.body)
    if chars < accept.min_text_chars:
        wanted = f"at least {accept.min_text_chars} are asked for"
        return f"accept.min_text_chars: {chars} characters of visible text, {wanted}"
    for index, css in enumerate(accept.require):
        if document.tree.select_one(css) is None:
            return f"accept.require[{index}]: nothing matches {css}"
    if accept.language is not None and not _speaks(document.language, accept.language):
        declared = f"the page says {document.language}" if document.language else "the page names no language"
        return f"accept.language: {declared}, {accept.language} is asked for"
    return None


def _speaks(declared: str | None, wanted: str) -> bool:
    """Whether a declared language tag is the wanted one or a variety of it: `en-GB` speaks `en`, `eng` does not."""
    tag = (declared or "").replace("_", "-").lower()
    return tag == wanted.lower() or tag.startswith(wanted.lower() + "-")
