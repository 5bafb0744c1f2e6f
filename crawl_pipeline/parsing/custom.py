"""Extractors that a team writes itself: `python: module:function` in a contract.

The function takes a `Page` and yields dicts, or returns a list of them. Whatever else it does is a fault of its own,
told with the line of its code.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from crawl_pipeline.errors import UsageError
from crawl_pipeline.parsing.copies import Budget, ExtractorFault
from crawl_pipeline.parsing.document import Document
from crawl_pipeline.parsing.meaning import visible_text
from crawl_pipeline.parsing.text import plain

if TYPE_CHECKING:
    from bs4 import BeautifulSoup

MOST_RECORDS = 10_000
_LONGEST_MESSAGE = 300


class PageTimeout(BaseException):
    """Raised by a signal handler in whatever runs when a page's time is up. No `except Exception` stops it."""


class Page:
    """What a custom extractor gets. Everything but `url` is made on first use."""

    def __init__(self, url: str, document: Document) -> None:
        self.url = url
        self.document = document

    @cached_property
    def html(self) -> str:
        """The page's source, decoded."""
        return self.document.source

    @cached_property
    def text(self) -> str:
        """The page's visible text as one line."""
        return visible_text(self.document).body

    @cached_property
    def soup(self) -> BeautifulSoup:
        """The page as BeautifulSoup: the tree that selectors see, with every implied tag. It is the extractor's own."""
        from bs4 import BeautifulSoup  # a tenth of a second, which only those pay who use it

        return BeautifulSoup(self.document.markup, "html.parser")


class CustomExtractor:
    """One imported function. Raises UsageError where there is none to import."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        module_name, _, name = reference.partition(":")
        try:
            self._module = importlib.import_module(module_name)
            self._function: Callable[[Page], object] = getattr(self._module, name)
        except Exception as error:
            raise UsageError(
                f"the extractor {reference} cannot be imported: {described(error)}; name it as module:function, "
                "in a module that Python finds (the working directory, or an installed package)"
            ) from error
        if not callable(self._function):
            raise UsageError(f"the extractor {reference} is not a function; name one as module:function")

    @property
    def fingerprint(self) -> str:
        """A hash of the source of the function's module; its name where the source cannot be read."""
        try:
            source = inspect.getsource(self._module)
        except (OSError, TypeError):
            source = self.reference
        return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()

    def records(self, page: Page) -> list[dict[str, object]]:
        """The dicts that the function yields for a page, checked and copied; all of them, or an error.

        Raises ExtractorFault for everything that the function does wrong; only PageTimeout and KeyboardInterrupt pass.
        """
        try:
            return self._collect(page)
        except (PageTimeout, KeyboardInterrupt):
            raise
        except ExtractorFault as fault:
            raise ExtractorFault(f"{self.reference} {fault}") from None
        except BaseException as error:  # SystemExit and the like too: an extractor ends no worker
            raise ExtractorFault(f"{self.reference} raised {described(error)}{self._line(error)}") from None

    def _collect(self, page: Page) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        budget = Budget()
        for item in _items(self._function(page)):
            if len(found) == MOST_RECORDS:
                raise ExtractorFault(f"yields more than {MOST_RECORDS:,} records for one page")
            if not isinstance(item, Mapping):
                raise ExtractorFault(f"yields a {type(item).__name__}: yield dicts")
            found.append(budget.copied_record(item))
        return found

    def _line(self, error: BaseException) -> str:
        """Where in the extractor's own module it happened, else where at all."""
        where = ""
        trace = error.__traceback__
        while trace is not None:
            module = str(trace.tb_frame.f_globals.get("__name__"))
            if module == self._module.__name__:
                where = f" (line {trace.tb_lineno})"
            elif module != __name__ and not where:
                where = f" ({module}, line {trace.tb_lineno})"
            trace = trace.tb_next
        return where


def described(error: BaseException) -> str:
    """An exception's type and message on one line, whatever its `str()` does."""
    try:
        message = " ".join(plain(str(error)).split())
    except Exception:
        message = ""
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 3] + "..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _items(result: object) -> Iterable[object]:
    if result is None:
        raise ExtractorFault("returned None: yield dicts, or return a list of them")
    if isinstance(result, Mapping):
        return [result]
    if inspect.iscoroutine(result):
        result.close()
        raise ExtractorFault("is asynchronous: make it a plain function")
    if isinstance(result, (str, bytes)) or not isinstance(result, Iterable):
        raise ExtractorFault(f"returned a {type(result).__name__}: yield dicts, or return a list of them")
    return result
