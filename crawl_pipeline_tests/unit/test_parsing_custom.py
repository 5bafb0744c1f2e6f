"""Extractors that a team writes itself, and everything that they may do wrong."""

from __future__ import annotations

import json
import signal
import textwrap
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

from crawl_pipeline.domain.outcomes import Reason
from crawl_pipeline.errors import UsageError
from crawl_pipeline.parsing.extraction import Extraction, Extractor, PageTimeout
from crawl_pipeline_tests.unit.parsing_support import contract, custom, document, extract, page_url, verdict

HTML = "<h1>T</h1><ul><li class=sku>1<li class=sku>2</ul><script>var state = {'a': 1};</script>"
Write = Callable[[str], str]
_numbers = count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module with a function `products`, and give the reference to it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def writer(source: str) -> str:
        name = f"team_extractors_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return f"{name}:products"

    return writer


def run(reference: str, html: str = HTML) -> Extraction:
    return extract(html, contract([custom(reference)]))


def test_a_function_takes_the_page_and_yields_dicts(write: Write) -> None:
    reference = write("""
        def products(page):
            for item in page.soup.select("li.sku"):
                yield {"sku": item.get_text(strip=True), "url": page.url, "tag": item.string, "more": {"a": (1, None)}}
    """)
    extraction = run(reference)
    assert extraction.faults == ()
    assert [json.loads(record.data) for record in extraction.records] == [
        {"sku": n, "url": "http://shop.example/product/1", "tag": n, "more": {"a": [1, None]}} for n in ("1", "2")
    ]


def test_a_page_has_its_source_its_text_and_its_own_soup(write: Write) -> None:
    reference = write("""
        def products(page):
            page.soup.h1.decompose()
            yield {"sku": 1, "html": page.html, "text": page.text, "title": page.document.tree.find("h1").text}
    """)
    (record,) = run(reference).records
    assert json.loads(record.data) == {"sku": 1, "html": HTML, "text": "T 1 2", "title": "T"}


def test_a_list_or_a_single_dict_may_be_returned_instead(write: Write) -> None:
    assert len(run(write("products = lambda page: [{'sku': 1}, {'sku': 2}]")).records) == 2
    assert len(run(write("products = lambda page: {'sku': 1}")).records) == 1
    assert run(write("products = lambda page: []")).faults == ()


def test_dates_and_decimals_are_kept_as_records_keep_them(write: Write) -> None:
    reference = write("""
        import datetime, decimal
        def products(page):
            yield {"sku": decimal.Decimal("1.50"), "d": datetime.date(2024, 3, 5),
                   "t": datetime.datetime(2024, 3, 5, tzinfo=datetime.timezone.utc)}
    """)
    (record,) = run(reference).records
    assert record.data == '{"d":"2024-03-05","sku":"1.50","t":"2024-03-05T00:00:00+00:00"}'


WRONG = [
    ("return None", "returned None: yield dicts, or return a list of them"),
    ("return 5", "returned a int: yield dicts, or return a list of them"),
    ("return 'text'", "returned a str: yield dicts, or return a list of them"),
    ("return b'x'", "returned a bytes: yield dicts, or return a list of them"),
    ("yield 5", "yields a int: yield dicts"),
    ("yield None", "yields a NoneType: yield dicts"),
    ("yield {'sku': b'x'}", "yields bytes at sku: decode them"),
    ("yield {'sku': 1, 'a': [{'b': {1, 2}}]}", "yields a set at a[0].b: use text, numbers, dates, lists and dicts"),
    ("yield {'sku': float('nan')}", "yields nan at sku: use None where there is no number"),
    ("yield {'sku': float('-inf')}", "yields -inf at sku: use None where there is no number"),
    ("import decimal; yield {'sku': decimal.Decimal('NaN')}", "yields NaN at sku: use None where there is no number"),
    ("yield {'sku': 2 ** 20000}", "yields an integer of 20,001 bits at sku"),
    ("yield {1: 2}", "yields a int as a key: use text"),
    ("yield {'sku': 1, 'a': {(): 2}}", "yields a tuple as a key at a: use text"),
    ("yield {'name': 'x'}", "a record without its key field sku"),
    ("yield {'sku': ''}", "a record without its key field sku"),
    ("yield {'sku': None}", "a record without its key field sku"),
    ("yield {'sku': 1, 'a': page.soup.h1}", "yields a Tag at a: use text, numbers, dates, lists and dicts"),
    ("yield from ({'sku': n} for n in range(1_000_000))", "yields more than 10,000 records for one page"),
    ("yield from ({'sku': 1} for n in range(1_000_000))", "yields more than 10,000 records for one page"),
    ("yield {'sku': 'x' * 20_000_000}", "yields more than 16,000,000 characters for one page"),
    (
        "yield from ({'sku': n, 'x': 'y' * 10_000} for n in range(9_999))",
        "yields more than 16,000,000 characters for one page",
    ),
    ("a = []; a.append(a); a.append(a); yield {'sku': 1, 'a': a}", "yields data nested deeper than 20 levels"),
    ("a = {}; a['a'] = a; yield {'sku': 1, 'a': a}", "yields data nested deeper than 20 levels"),
    ("yield {'sku': 1, 'a': [None] * 600_000}", "yields more than 16,000,000 characters for one page"),
    ("raise KeyError('sku')", "raised KeyError: 'sku' (line 3)"),
    ("yield {'sku': 1}\n    raise ValueError", "raised ValueError (line 4)"),
    ("int('x' * 1000)", "raised ValueError: invalid literal for int() with base 10:"),
    ("import json\n    json.loads('{')", "raised JSONDecodeError: Expecting property name"),
    ("import sys; sys.exit(3)", "raised SystemExit: 3 (line 3)"),
    ("raise GeneratorExit", "raised GeneratorExit (line 3)"),
    ("raise BaseException('b')", "raised BaseException: b (line 3)"),
    ("return products(page)", "raised RecursionError: maximum recursion depth exceeded"),
    ("class E(Exception):\n        def __str__(self): raise self\n    raise E", "raised E (line 5)"),
    ("raise ValueError('a\\nb\\x00\\ud800' + 'c' * 1000)", "raised ValueError: a b\ufffd\ufffdccc"),
    ("class M(dict):\n        def items(self): raise OSError('gone')\n    yield M()", "raised OSError: gone (line 4)"),
]


@pytest.mark.parametrize(("body", "sentence"), WRONG, ids=[body.split("\n")[0][:50] for body, _ in WRONG])
def test_whatever_a_function_does_wrong_is_a_fault_of_its_own_in_a_sentence(
    write: Write, body: str, sentence: str
) -> None:
    reference = write(f"\ndef products(page):\n    {body}\n")
    extraction = run(reference)
    (fault,) = extraction.faults
    assert fault.reason is Reason.EXTRACTION_ERROR
    assert fault.rule == "records[0]"
    assert fault.detail.removeprefix(f"{reference} ").startswith(sentence)
    assert fault.detail.isprintable()
    assert len(fault.detail) < 500
    found = verdict(HTML, contract([custom(reference)]))
    assert found is not None
    assert found.reason is Reason.EXTRACTION_ERROR


@pytest.mark.parametrize("kind", ["async def products(page): return []", "async def products(page): yield {}"])
def test_an_asynchronous_function_is_a_fault_and_leaves_nothing_unawaited(write: Write, kind: str) -> None:
    (fault,) = run(write(kind)).faults
    assert fault.reason is Reason.EXTRACTION_ERROR
    assert "asynchronous" in fault.detail or "async_generator" in fault.detail


def test_a_fault_takes_the_whole_rules_records_with_it(write: Write) -> None:
    assert run(write("def products(page):\n    yield {'sku': 1}\n    yield 5")).records == ()


def test_nuls_and_surrogates_of_a_function_never_reach_a_record(write: Write) -> None:
    (record,) = run(write(r"products = lambda page: {'sku': 'a\x00\ud800', 'x\ud800': 1}")).records
    assert json.loads(record.data) == {"sku": "a\ufffd\ufffd", "x\ufffd": 1}


def test_a_fault_names_the_line_of_the_function_and_not_of_the_library_below(write: Write) -> None:
    reference = write(
        "import json\n\n\ndef read(text):\n    return json.loads(text)\n\n\nproducts = lambda page: read('{')\n"
    )
    (fault,) = run(reference).faults
    assert fault.detail.endswith("(line 5)")


LOOPS = {
    "a bare loop": "while True: pass",
    "except Exception": "while True:\n        try:\n            pass\n        except Exception:\n            pass",
    "a generator": "n = 0\n    while True:\n        n += 1\n        if n < 0: yield {}",
    "suppress": "import contextlib\n    while True:\n        with contextlib.suppress(Exception): pass",
}


@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS)
def test_a_timeout_passes_through_a_function_that_catches_every_exception(write: Write, body: str) -> None:
    """Fails (never ends) where CustomExtractor.records catches BaseException before PageTimeout."""
    extractor = Extractor(contract([custom(write(f"def products(page):\n    {body}\n"))]))
    page = document(HTML)

    def time_is_up(_signal: int, _frame: FrameType | None) -> None:
        raise PageTimeout

    before = signal.signal(signal.SIGVTALRM, time_is_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
    try:
        with pytest.raises(PageTimeout):
            extractor.extract(page, page_url())
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_a_keyboard_interrupt_passes_too(write: Write) -> None:
    reference = write("def products(page): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        run(reference)


@pytest.mark.parametrize(
    ("source", "name", "sentence"),
    [
        (None, "products", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1", "products", "AttributeError: "),
        ("products = 1", "products", "is not a function"),
        ("def products(:", "products", "SyntaxError: "),
        ("raise OSError('disk')", "products", "OSError: disk"),
    ],
)
def test_a_function_that_cannot_be_imported_is_told_before_any_page(
    write: Write, source: str | None, name: str, sentence: str
) -> None:
    reference = f"no_such_module:{name}" if source is None else write(source)
    with pytest.raises(UsageError) as error:
        Extractor(contract([custom(reference)]))
    assert str(error.value).startswith(f"the extractor {reference} ")
    assert sentence in str(error.value)


def test_the_version_moves_with_the_source_of_the_functions_module(write: Write) -> None:
    one = write("products = lambda page: []")
    same = write("products = lambda page: []")
    other = write("products = lambda page: [{'sku': 1}]")
    fixed = contract().extractor_fingerprint

    def version(reference: str) -> str:
        rules = contract([custom(reference)])
        rules.__dict__["extractor_fingerprint"] = fixed  # so that only the module differs
        return Extractor(rules).version

    assert version(one) == version(same)
    assert version(one) != version(other)
